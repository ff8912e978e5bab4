"""A process that does nothing, for torchrun to start."""
