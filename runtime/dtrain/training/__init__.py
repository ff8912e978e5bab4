"""Keras's API: `Model` and `Sequential` with compile, fit, evaluate and predict.

`models` is what users hold, `fits` one call of `fit` with the training loop (it reads top to bottom),
`evaluation` the other loop, `batches` the data of both. Nothing here knows how gradients become weights: that
is a `dtrain.strategies.interface.Training`.
"""
