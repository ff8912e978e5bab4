"""The leader's memory that outlives it: where it stands in an epoch's hooks, the states of its callbacks, and
their changes that the strategy has not been told of yet.

It is kept after each hook of an epoch that has come to its end, and after hooks of batches that have changed
a state. A hook in whose midst the leader dies is called again in the next leader; one that had ended is not.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from dtrain.callbacks import Callback
from dtrain.errors import InputError
from dtrain.formats import plain_data
from dtrain.learning import optimizers
from dtrain.learning.optimizers import Optimizer
from dtrain.strategies.interface import FitOrder, Training
from dtrain.training.architecture import Architecture

PLACE = "place"
CHANGES = "changes"
STATE = "callback "


class HookProgress(msgspec.Struct, frozen=True):
    """How far the hooks of an epoch, counted from 0, have been called.

    It `ends` while `on_epoch_end` is being called, else `on_epoch_begin`; `done` names the callbacks whose
    hook has come to its end.
    """

    epoch: int
    ends: bool
    done: tuple[str, ...] = ()


class _Changes(msgspec.Struct, frozen=True):
    """Changes that callbacks have made after a step, and that the strategy may not know.

    `weights` has the new values of variables; others stay.
    """

    step: int
    optimizer: dict[str, Any]
    stop: bool
    weights: dict[str, Any]


class Handover:
    """The memory of one leader, which begins with that of the previous leader.

    Attributes:
        place: where the previous leader stood; None: there was none, or no epoch had begun.
        follows: whether there was one.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        model: Architecture,
        optimizer: Optimizer,
        training: Training,
    ) -> None:
        self._callbacks = _named(callbacks)
        self._names = {id(callback): name for name, callback in self._callbacks.items()}
        self._model = model
        self._optimizer = optimizer
        self._training = training
        self._kept = dict(training.kept or {})
        self.follows = bool(self._kept)
        place = self._read(PLACE)
        self.place = None if place is None else msgspec.convert(place, HookProgress)

    # What the leader before has kept

    def restore(self) -> None:
        """Give callbacks the states of those of the previous leader, apply its changes, and print who begins
        anew.
        """
        states = {name.removeprefix(STATE): self._read(name) for name in self._kept if name.startswith(STATE)}
        for name, callback in self._callbacks.items():
            if state := states.get(name):
                callback.set_state(state)
        anew = [name for name in self._callbacks if states.get(name) is None]
        missing = sorted(states.keys() - self._callbacks.keys())
        training = self._training
        text = f"dtrain: fit: the leader has died; this task leads, from step {training.global_step + 1} on"
        if anew:
            text += f"; callbacks without a state begin anew: {', '.join(anew)} (see Callback.get_state)"
        if missing:
            text += f"; not among the callbacks of this task: {', '.join(missing)}"
        print(text, file=sys.stderr, flush=True)
        if (found := self._read(CHANGES)) is not None:
            self._apply(msgspec.convert(found, _Changes))
        if training.finished:  # as the leader before may have ordered
            self._model.stop_training = True

    def _apply(self, changes: _Changes) -> None:
        vars(self._optimizer).update(vars(optimizers.from_config(changes.optimizer)))
        self._model.stop_training = changes.stop
        # Where a step was made since, the strategy had been told.
        if changes.weights and changes.step == self._training.global_step:
            self._model.arrays = {**self._training.weights, **changes.weights}

    def _read(self, name: str) -> Any:
        return plain_data.decode(self._kept[name]) if name in self._kept else None

    # What this one keeps

    def name(self, callback: Callback) -> str:
        """Return the name of a callback, the same in every task that has the same callbacks."""
        return self._names[id(callback)]

    def store(self, place: HookProgress | None, called: Iterable[Callback]) -> None:
        """Keep a position in an epoch's hooks, the states of callbacks that were called, and all changes."""
        if self._training.kept is not None:
            at = {} if place is None else {PLACE: plain_data.encode(asdict(place))}
            self._store(
                {
                    **at,
                    CHANGES: plain_data.encode(asdict(self._changes())),
                    **self._states(called),
                }
            )

    def keep_states(self, called: Sequence[Callback]) -> None:
        if called and self._training.kept is not None:
            self._store(self._states(called))

    def clear_changes(self) -> None:
        """Forget the changes, of which the strategy knows now."""
        if self._training.kept is not None:
            self._store({CHANGES: plain_data.encode(None)})

    def _store(self, entries: Mapping[str, bytes]) -> None:
        new = {name: entry for name, entry in entries.items() if self._kept.get(name) != entry}
        if new:
            self._training.order(FitOrder(kept=new))
            self._kept.update(new)

    def _states(self, called: Iterable[Callback]) -> dict[str, bytes]:
        return {f"{STATE}{self.name(callback)}": self._state(callback) for callback in called}

    def _state(self, callback: Callback) -> bytes:
        try:
            return plain_data.encode(callback.get_state())
        except TypeError as error:
            raise InputError(
                f"fit: the state of the callback {self.name(callback)}: expected plain data (numbers, "
                f"texts, lists, mappings, arrays), found {error}"
            ) from None

    def _changes(self) -> _Changes:
        model = self._model
        known = self._training.weights
        assigned = {name: value for name, value in model.arrays.items() if value is not known.get(name)}
        config = optimizers.serialize(self._optimizer)
        return _Changes(self._training.global_step, config, bool(model.stop_training), assigned)


def _named(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Return callbacks by name: the class, from the second of a class on with a number."""
    named: dict[str, Callback] = {}
    counts: Counter[str] = Counter()
    for callback in callbacks:
        kind = type(callback).__name__
        counts[kind] += 1
        named[kind if counts[kind] == 1 else f"{kind} {counts[kind]}"] = callback
    return named
