"""The numeric library: layers, losses, metrics, networks, optimizers. Numpy only, no IO, no clock, no chance
of its own.
"""
