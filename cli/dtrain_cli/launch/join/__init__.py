"""Workers that join a run that is training."""
