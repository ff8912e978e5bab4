"""Parameters in memory: placement, tables, buffers and codecs."""
