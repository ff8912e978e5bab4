"""Looks at files of data, for `dtrain data`: their kind, rows and indexes, and how fast they are read."""
