"""`dt.tuning`: what a trial of `dtrain tune` reports; searches within a program, in Keras Tuner's words."""

from dtrain.tuning.hyperparameters import HyperParameters
from dtrain.tuning.searches import BayesianOptimization, Objective, RandomSearch
from dtrain.tuning.trial import report, should_prune

__all__ = ["BayesianOptimization", "HyperParameters", "Objective", "RandomSearch", "report", "should_prune"]
