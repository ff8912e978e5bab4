"""Places from which ranges of bytes are read: files here, and URLs."""
