"""What a run starts: tasks, their ports and their environments."""
