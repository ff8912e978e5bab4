"""Hashes of many texts at once, by TensorFlow's numbers."""
