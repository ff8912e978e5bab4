"""The rarer methods of a strategy, `strategy.extended`; see `tf.distribute.StrategyExtended`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtrain.strategies.reduction import ReduceOp
from dtrain.strategies.replicas.contexts import Updating, entered
from dtrain.strategies.replicas.loops import Loops
from dtrain.strategies.replicas.nests import of_replica, regrouped
from dtrain.strategies.replicas.values import Mirrored
from dtrain.strategies.replicas.variables.variable import Variable


class Extended:
    """Devices, and reductions and updates from outside of the replicas.

    Args:
        loops: of the strategy.
    """

    experimental_require_static_shapes = False

    def __init__(self, loops: Loops) -> None:
        self._loops = loops

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The names of the devices of this process's replicas."""
        return self._loops.devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The names of the devices on which variables lie: those of all replicas, or the one of all."""
        return ("CPU:0",) if self._loops.one_copy else self._loops.devices

    def variable_created_in_scope(self, variable: Variable) -> bool:
        """Return whether a variable was made in the scope of this strategy."""
        return variable.group is self._loops

    def reduce_to(self, reduce_op: ReduceOp | str, value: Any, destinations: Any) -> Any:
        """Return the sum or the mean of a value over all replicas, where `destinations` is.

        Args:
            reduce_op: SUM or MEAN.
            value: as `run` returns it.
            destinations: a variable: the result is `Mirrored`, the same in each replica. Anything else, such
                as the name of a device: the result is plain.
        """
        result = self._loops.reduce(reduce_op, value, None)
        return Mirrored([result] * self._loops.replicas) if isinstance(destinations, Variable) else result

    def batch_reduce_to(
        self, reduce_op: ReduceOp | str, value_destination_pairs: Sequence[tuple[Any, Any]]
    ) -> list[Any]:
        """Return `reduce_to` of each pair of a value and its destination."""
        return [self.reduce_to(reduce_op, value, where) for value, where in value_destination_pairs]

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call ``fn(var, *args, **kwargs)`` once for each replica's copy of a variable.

        Args:
            var: `fn` reads and assigns the copy of one replica.
            fn: the update.
            args: further arguments; of `DistributedValues` in them each replica's own.
            kwargs: likewise.
            group: whether to return the variable as a whole, not what `fn` returns.
        """
        self._loops.check_outside("extended.update")
        results = []
        for index in range(self._loops.replicas):
            own_args, own_kwargs = of_replica((tuple(args), dict(kwargs or {})), index)
            with entered(Updating(self._loops.strategy, index)):
                results.append(fn(var, *own_args, **own_kwargs))
        return var if group else regrouped(results)
