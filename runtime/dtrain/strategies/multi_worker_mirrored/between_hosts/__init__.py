"""The ways of one task of a run without servers to tasks of other hosts."""
