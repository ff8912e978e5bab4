"""Keras's face: `Model` and `Sequential` with compile, fit, evaluate and predict, and the Estimator's
`train_and_evaluate`.

`models` is what users hold, `loop` the training loop (it reads top to bottom), `evaluation` the other loop,
`batches` what both are fed with, `estimator` the older shape. Nothing here knows how gradients become
weights: that is a `dtrain.strategies.interface.Session`.
"""
