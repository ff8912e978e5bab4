"""A model as a graph of layers: its wiring, its passes, and the gradients of its losses."""
