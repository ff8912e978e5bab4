"""Forms of files and texts: TFRecord, TensorBoard's event files, arrays, JSON, URLs as records show them."""
