"""The beginning of a call of `fit`: who is awaited, what all are told, and whether it is under way."""
