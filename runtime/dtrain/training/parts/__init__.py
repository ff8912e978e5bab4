"""Parts of batches: what one replica computes of a step, and where it is read."""
