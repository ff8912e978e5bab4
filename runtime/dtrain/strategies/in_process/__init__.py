"""Calls of `fit` whose variables lie in the memory of one process: with one replica, or with several."""
