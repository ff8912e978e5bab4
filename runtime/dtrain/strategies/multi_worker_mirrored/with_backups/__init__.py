"""One task's part in a call of `fit` with backups: a step does not wait for every replica of the host."""
