"""Orders of many rows that are computed index by index, so that no array of them is in memory."""
