"""A parameter server: `machine` decides, `driver` runs it; beside them what it holds and how it answers."""
