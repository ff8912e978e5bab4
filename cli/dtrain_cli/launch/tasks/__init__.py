"""What the launcher knows of each task of a run: its life, why it failed, where it stood."""
