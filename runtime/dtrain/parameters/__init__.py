"""Parameters where they lie: placement, tables, buffers and codecs."""
