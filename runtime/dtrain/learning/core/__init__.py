"""The parts of layers, losses, metrics and optimizers: arrays, activations, initializers, regularizers."""
