"""What layers, losses, metrics and optimizers are made of: arrays, activations, initializers,
regularizers.
"""
