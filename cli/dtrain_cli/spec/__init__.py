"""The spec of a run: read, merged with options, and checked."""
