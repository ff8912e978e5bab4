"""One launch, from the first port to the exit code."""
