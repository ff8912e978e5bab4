"""The state of one call of `fit`, as plain data: it is sent, saved and compared, and holds no array."""
