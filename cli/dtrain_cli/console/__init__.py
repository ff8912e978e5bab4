"""The output for people on a terminal."""
