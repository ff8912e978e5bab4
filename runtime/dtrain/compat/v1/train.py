"""`dt.compat.v1.train`: optimizers whose `minimize` belongs to a `model_fn`; see `tf.compat.v1.train`.

Other names are those of `dt.train`. The global step counts the optimizer's updates by itself.
"""

from importlib import import_module
from typing import Any

from dtrain.absent_names import hint
from dtrain.compat.model_fn import NotedLoss, TrainOperation
from dtrain.errors import InputError
from dtrain.learning import optimizers
from dtrain.learning.optimizers import schedules

__all__ = [
    *("AdagradOptimizer", "AdamOptimizer", "GradientDescentOptimizer", "MomentumOptimizer"),
    *("exponential_decay", "get_global_step", "get_or_create_global_step"),
]


def get_or_create_global_step() -> None:
    """Return None, which `minimize` takes. See `tf.compat.v1.train.get_or_create_global_step`."""


get_global_step = get_or_create_global_step


class _Minimizing:
    """An optimizer of TensorFlow 1, which is one of `dt.optimizers`."""

    def __init__(self, optimizer: optimizers.Optimizer) -> None:
        self.optimizer = optimizer

    def minimize(self, loss: Any, global_step: Any = None, var_list: Any = None) -> TrainOperation:
        """Return the `train_op` of an `EstimatorSpec`.

        Args:
            loss: what a function of `tf1.losses` returns, or a sum of such.
            global_step: without effect.
            var_list: only None: `trainable=False` keeps a layer as it is.

        Raises:
            InputError: the loss is something else, or variables are listed.
        """
        if not isinstance(loss, NotedLoss):
            raise InputError(
                f"minimize: expected a loss of tf1.losses, found {type(loss).__name__}; a loss of your own "
                "is a class derived from dt.losses.Loss, for model.compile"
            )
        if var_list is not None:
            raise InputError("minimize: var_list: give the other layers trainable=False")
        return TrainOperation(self.optimizer, loss)


class GradientDescentOptimizer(_Minimizing):
    """`dt.optimizers.SGD`. See `tf.compat.v1.train.GradientDescentOptimizer`.

    Args:
        learning_rate: a number or a schedule.
    """

    def __init__(self, learning_rate: Any) -> None:
        super().__init__(optimizers.SGD(learning_rate))


class MomentumOptimizer(_Minimizing):
    """`dt.optimizers.SGD` with momentum. See `tf.compat.v1.train.MomentumOptimizer`.

    Args:
        learning_rate: a number or a schedule.
        momentum: how much of the mean of gradients stays at each step.
        use_nesterov: whether the gradient is that of the place ahead.
    """

    def __init__(self, learning_rate: Any, momentum: float, use_nesterov: bool = False) -> None:
        super().__init__(optimizers.SGD(learning_rate, momentum, nesterov=use_nesterov))


class AdagradOptimizer(_Minimizing):
    """`dt.optimizers.Adagrad` without epsilon. See `tf.compat.v1.train.AdagradOptimizer`.

    Args:
        learning_rate: a number or a schedule.
        initial_accumulator_value: the sum of squares with which an element begins.
    """

    def __init__(self, learning_rate: Any, initial_accumulator_value: float = 0.1) -> None:
        super().__init__(optimizers.Adagrad(learning_rate, initial_accumulator_value, epsilon=0.0))


class AdamOptimizer(_Minimizing):
    """`dt.optimizers.Adam`. See `tf.compat.v1.train.AdamOptimizer`.

    Args:
        learning_rate: a number or a schedule.
        beta1: how much of the mean of gradients stays at each step.
        beta2: how much of the mean of squares stays at each step.
        epsilon: a small number that keeps the divisor off 0.
    """

    def __init__(
        self, learning_rate: Any = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        super().__init__(optimizers.Adam(learning_rate, beta1, beta2, epsilon))


def exponential_decay(
    learning_rate: float, global_step: Any, decay_steps: int, decay_rate: float, staircase: bool = False
) -> schedules.LearningRateSchedule:
    """Return `dt.optimizers.schedules.ExponentialDecay`. See `tf.compat.v1.train.exponential_decay`.

    Args:
        learning_rate: the first rate.
        global_step: without effect: a schedule counts the optimizer's updates.
        decay_steps: after so many steps the rate is multiplied by `decay_rate`.
        decay_rate: the factor.
        staircase: whether the rate changes only there.
    """
    return schedules.ExponentialDecay(learning_rate, decay_steps, decay_rate, staircase)


def __getattr__(name: str) -> Any:
    train = import_module("dtrain.compat.train")
    if name in train.__all__:
        return getattr(train, name)
    use = hint(__name__, name, __all__) or hint("dtrain.train", name, train.__all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{use}", name=name)
