"""`GradientTape`: gradients of what a program computes with functions of dt, layers and models.

A tape is a recording of autograd. While it is open every variable that is to be trained is read as a recorded
value, and so are the results of functions, of operators and of models that are called. Values know the
recording, so it goes on as long as they are used, and `gradient` goes back through them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from dtrain.errors import ProgramError
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
        # the array that was read -> the array itself, its recorded form, its number in the recording
        self._seen: dict[int, tuple[Any, RecordedTensor, int]] = {}
        self._named: dict[int, Any] = {}
        self._read: dict[int, tuple[Any, list[int]]] = {}  # a variable -> itself, and numbers of its values
        self._count = 0

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
            self._named[id(each)] = each
        return mapped(
            lambda each: self.value_of(each, each.read() if isinstance(each, Source) else each), tensor
        )

    def value_of(self, source: Any, value: Any) -> Any:
        """Return the recorded form of what a line reads of a variable, if it is watched."""
        if isinstance(source, Source) and self._watches_all and source.trainable:
            watched = True
        else:
            watched = id(source) in self._named
        if not watched or np.dtype(value.dtype).kind != "f":
            return value
        origin = _origin(value)
        if id(origin) not in self._seen:
            self._seen[id(origin)] = origin, self._recording.watch(value), self._count
            self._count += 1
        _, recorded, number = self._seen[id(origin)]
        numbers = self._read.setdefault(id(source), (source, []))[1]
        if number not in numbers:
            numbers.append(number)
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
        factors = [None] * len(targets) if output_gradients is None else list(leaves(output_gradients))
        found: list[Any] = [None] * self._count
        with self._paused():
            for each, factor in zip(targets, factors, strict=True):
                for number, gradient in enumerate(self._recording.gradients(each, factor)):
                    if gradient is not None:
                        before = found[number]
                        found[number] = gradient if before is None else before + gradient
        return mapped(lambda source: self._by(source, found, unconnected_gradients), sources)

    def _by(self, source: Any, found: list[Any], unconnected: str | None) -> Any:
        numbers = list(self._read.get(id(source), (None, []))[1])
        value = source.read() if isinstance(source, Source) else source
        if not numbers:
            entry = self._seen.get(id(_origin(value)))
            numbers = [] if entry is None else [entry[2]]
        numbers += [
            entry[2] for entry in self._seen.values() if entry[1] is source and entry[2] not in numbers
        ]
        if not numbers and id(source) in self._named:
            raise ProgramError(
                "GradientTape.gradient: an array was watched, but no function of dt was given it; write x = "
                "tape.watch(x) and compute with that"
            )
        parts = [found[number] for number in numbers if found[number] is not None]
        if not parts:
            return np.zeros(np.shape(bare(value)), np.float32) if str(unconnected).endswith("zero") else None
        total = sum(parts[1:], parts[0])
        if is_recorded(total) and not WATCHERS.get():
            total = bare(total)  # the tape around this one has ended
        return total if isinstance(total, RecordedTensor) else np.asarray(total, np.dtype(value.dtype))

    @contextmanager
    def _paused(self) -> Iterator[None]:
        before = WATCHERS.get()
        WATCHERS.set(tuple(each for each in before if each is not self))
        try:
            yield
        finally:
            WATCHERS.set(before)

    def watched_variables(self) -> tuple[Any, ...]:
        """Return the variables that were read."""
        return tuple(source for source, _ in self._read.values() if isinstance(source, Source))


def _origin(value: Any) -> Any:
    """Return the array of which a value is a view: the same for all variables that share it."""
    base: Array | None = getattr(value, "base", None)
    return value if base is None or np.shape(base) != np.shape(value) else base
