"""Training of a model that is cut into stages, each of which is computed by one task."""
