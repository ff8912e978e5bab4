"""`GradientTape`: gradients of what a program computes with functions of dt, layers and models.

A tape is a recording of autograd. While it is open every variable that is to be trained is read as a recorded
value, and so are the results of functions, of operators and of models that are called. Values know the
recording, so it goes on as long as they are used, and `gradient` goes back through them.
"""

from typing import Any, Self

import numpy as np

from dtrain.errors import ProgramError
from dtrain.learning.core.results import result_of
from dtrain.learning.functions.recording import RecordedTensor, Recording, bare, is_recorded
from dtrain.learning.functions.tensors import WATCHERS, Source, leaves, mapped
from dtrain.types import Array


class GradientTape:
    """A recording of computations, for their gradients; see `tf.GradientTape`.

    It needs the extra ``dtrain[autograd]``. Of a model or layer that is called, the gradient is that of its
    own backward pass; so there are second derivatives (of tapes within tapes) of functions of dt alone.

    Args:
        persistent: whether `gradient` may be called more than once.
        watch_accessed_variables: whether variables that are read are watched without being named.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._watches_all = watch_accessed_variables
        self._used = False
        self._recording = Recording()
        # id of the array that was read -> the array, its recorded form, and of what it was the value
        self._seen: dict[int, tuple[Any, RecordedTensor, list[Any]]] = {}
        self._named: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Begin, or go on, to record."""
        WATCHERS.set((*WATCHERS.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        WATCHERS.set(tuple(each for each in WATCHERS.get() if each is not self))

    def watch(self, tensor: Any) -> Any:
        """Watch variables, arrays or recorded values: a single one or a list of them.

        Returns: What to compute with. Functions and models that are given a watched array know it; operators
            on the array itself do not, so write ``x = tape.watch(x)``.
        """
        for each in leaves(tensor):
            if not hasattr(each, "dtype"):
                raise ProgramError(f"GradientTape.watch: expected arrays or variables, found {each!r}")
            self._named[id(each)] = each
        return mapped(
            lambda each: self.value_of(each, each.read() if isinstance(each, Source) else each), tensor
        )

    def value_of(self, source: Any, value: Any) -> Any:
        """Return the recorded form of what a line reads of a variable, if it is watched."""
        of_itself = isinstance(source, Source) and self._watches_all and source.trainable
        if not (of_itself or id(source) in self._named) or np.dtype(value.dtype).kind != "f":
            return value
        origin = _origin(value)
        if id(origin) not in self._seen:
            self._seen[id(origin)] = origin, self._recording.watch(value), []
        _, recorded, sources = self._seen[id(origin)]
        if all(each is not source for each in sources):
            sources.append(source)
        return recorded

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: str | None = None,
    ) -> Any:
        """Return the gradients of a value, or of the sum of several, by variables and watched values.

        Args:
            target: a value; an array counts with the sum of its elements.
            sources: one, or a list, tuple or dict of them, in whose form the gradients come.
            output_gradients: factors of the elements of `target`.
            unconnected_gradients: ``zero``: zeros in the place of None for a source on which the target does
                not depend.

        Raises:
            ProgramError: it is called again without `persistent`; an array was watched, but not computed
                with; or the target is a number that was computed without the tape.
        """
        if self._used and not self._persistent:
            raise ProgramError(
                "GradientTape.gradient: was called before; make the tape with persistent=True to call it "
                "again"
            )
        self._used = True
        targets = list(leaves(target))
        factors = [1] * len(targets) if output_gradients is None else list(leaves(output_gradients))
        before = WATCHERS.get()
        self.__exit__()
        try:
            total = sum(np.sum(each * factor) for each, factor in zip(targets, factors, strict=True))
            found = self._recording.gradients(total)
        finally:
            WATCHERS.set(before)
        zeros = str(unconnected_gradients).endswith("zero")
        return mapped(lambda source: self._by(source, found, zeros), sources)

    def _by(self, source: Any, found: list[Any], zeros: bool) -> Any:
        value = source.read() if isinstance(source, Source) else source
        origin = _origin(value)
        reads = [
            gradient
            for gradient, (read, recorded, sources) in zip(found, self._seen.values(), strict=True)
            if recorded is source or read is origin or any(each is source for each in sources)
        ]
        if not reads and id(source) in self._named:
            raise ProgramError(
                "GradientTape.gradient: an array was watched, but no function of dt was given it; write x = "
                "tape.watch(x) and compute with that"
            )
        parts = [gradient for gradient in reads if gradient is not None]
        if not parts:
            return np.zeros(np.shape(bare(value)), np.float32) if zeros else None
        total = sum(parts[1:], parts[0])
        if is_recorded(total) and WATCHERS.get():
            return total  # by a tape around this one
        return result_of(np.asarray(bare(total), np.dtype(value.dtype)))

    def watched_variables(self) -> tuple[Any, ...]:
        """Return the variables that were read."""
        sources = (each for _, _, sources in self._seen.values() for each in sources)
        return tuple({id(each): each for each in sources if isinstance(each, Source)}.values())


def _origin(value: Any) -> Any:
    """Return the array of which a value is a view: the same for all variables that share it."""
    base: Array | None = getattr(value, "base", None)
    return value if base is None or np.shape(base) != np.shape(value) else base
