"""Files of rows: how the rows of each kind of file are read, found and addressed."""
