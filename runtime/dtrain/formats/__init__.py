"""File formats of other programs: TFRecord files and TensorBoard's event files."""
