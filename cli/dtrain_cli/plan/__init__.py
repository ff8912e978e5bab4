"""The contents of a run: tasks, their ports and their environments."""
