"""Functions by TensorFlow's names, on arrays, symbols of a model, and values that a tape records."""
