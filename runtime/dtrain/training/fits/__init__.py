"""One call of `fit` in one task: its epochs, its loop, and the duties of a leader."""
