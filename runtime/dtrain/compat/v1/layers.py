"""`dt.compat.v1.layers`: layers as functions of a symbol, with arguments of `tf.compat.v1.layers`.

They are the layers of `dt.layers`. An initializer that is None is Glorot's, as there. Unlike in TensorFlow 1,
penalties of regularizers are part of the loss without further ado.
"""

from collections.abc import Callable
from typing import Any

from dtrain.absent_names import absent_from
from dtrain.errors import SpecError
from dtrain.learning import layers

_FUNCTIONS = (
    "average_pooling1d average_pooling2d batch_normalization conv1d conv2d dense dropout flatten "
    "max_pooling1d max_pooling2d"
)
_CLASSES = [name.title().replace("_", "") for name in _FUNCTIONS.split()]

__all__ = [*_CLASSES, *_FUNCTIONS.split()]


def _maker(made: Any) -> Callable[..., Any]:
    """Return what makes a layer of the class `made`, as a class of `tf.compat.v1.layers` does."""

    def make(*arguments: Any, **named: Any) -> Any:
        if named.pop("reuse", None) or named.pop("_reuse", None):
            raise SpecError(
                f"tf1.layers: {made.__name__}: reuse: to share variables, make the layer once and call it "
                f"twice: layer = dt.layers.{made.__name__}(...)"
            )
        return made(*arguments, **{name: value for name, value in named.items() if value is not None})

    make.__name__ = made.__name__
    make.__doc__ = f"""Return a `dt.layers.{made.__name__}`.

    Args:
        arguments: of that layer.
        named: further ones; those that are None have their default.

    Raises:
        SpecError: an argument is wrong, or `reuse` is asked for.
    """
    return make


def _function(made: Any) -> Callable[..., Any]:
    """Return what puts a layer of the class `made` behind a symbol."""
    make = _maker(made)

    def use(inputs: Any, *arguments: Any, **named: Any) -> Any:
        training = (
            named.pop("training", False) if made.__name__ in ("Dropout", "BatchNormalization") else True
        )
        return make(*arguments, **named)(inputs, None if training else False)

    use.__doc__ = f"""Return what a `dt.layers.{made.__name__}` makes of a symbol.

    Args:
        inputs: the features of a `model_fn`, or the result of another layer.
        arguments: of that layer.
        named: further ones; those that are None have their default. `training`, of dropout and batch
            normalization alone, is False where it is not given, as in TensorFlow 1.

    Raises:
        SpecError: an argument is wrong, or `reuse` is asked for.
    """
    return use


_absent = absent_from("dtrain.compat.v1.layers", __all__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        return _absent(name)
    own = name in _CLASSES
    made = getattr(layers, name if own else name.title().replace("_", ""))
    return globals().setdefault(name, _maker(made) if own else _function(made))
