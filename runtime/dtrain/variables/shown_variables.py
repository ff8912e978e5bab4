"""The variables that a training shows a model, which may lie elsewhere after a step."""

from collections.abc import Callable, Mapping
from weakref import WeakMethod

from dtrain.types import Array


class ShownVariables(dict[str, Array]):
    """Variables by name.

    Attributes:
        follower: a method that is called with the new array of each old one, by its identity, when arrays
            were replaced; whoever keeps such arrays sets it.
    """

    follower: WeakMethod[Callable[[Mapping[int, Array]], None]] | None = None

    def show(self, arrays: Mapping[str, Array], replaced: Mapping[int, Array]) -> None:
        """Let these arrays stand in the place of those of the same names; `replacing` makes `replaced`."""
        self.update(arrays)
        follow = None if self.follower is None else self.follower()
        if follow is not None:
            follow(replaced)


def replacing(old: Mapping[str, Array], new: Mapping[str, Array]) -> dict[int, Array]:
    """Return what to hand to `ShownVariables.show` with `new` while it has `old`."""
    return {id(array): new[name] for name, array in old.items()}
