"""`FitState`: all that one call of `fit` is at one version, beside its arrays.

There is one form of it, for whatever needs it: the leader begins with it, a server or replica that takes part
is sent it, a server answers with it when a checkpoint is written, and the checkpoint's manifest holds it as
JSON. A resume goes on from nothing else.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.state.batch_cut import NOTHING_DEALT, Dealt
from dtrain.state.feed import UNKNOWN, Feed

FORMAT = 3
"""The version of the form in manifests."""

Row = dict[str, Any]
"""The numbers of one epoch by name, as callbacks left them: floats, or lists of floats."""
SeenPush = tuple[str, int, int]
"""The newest push of a replica that a server has judged; see `protocol.contributions`."""
Batches = tuple[int, tuple[int, ...]]
"""Applied batches: one more than the highest number; the missing ones below it, ascending."""
NO_BATCHES: Batches = (0, ())


class Sums(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """The share of examples in the loss and metrics of their epoch; sums of the same names add up.

    Rule *Aggregated logs* (docs/design/protocol.md#aggregated-logs).

    Attributes:
        names: of the numbers that a training step returned.
        totals: float64, little-endian: the count of examples; for each name the number times this count; the
            states of all metrics, flat, in the order in which they were compiled.
    """

    names: tuple[str, ...]
    totals: bytes


Open = tuple[tuple[int, Sums], ...]
"""Sums by epoch; several of one epoch where steps have returned different names."""


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of the variables of a term.

    Attributes:
        first_step: the version at which this generation began.
        origin: the version at which the optimizer began; its own steps (schedules, Adam's corrections) count
            from there. Below 0 if that was in another run.
    """

    first_step: int = 0
    origin: int = 0
    rolled_back_steps: int = 0


class Contents(NamedTuple):
    """The contents of one server's part of the variables, where servers may differ.

    Attributes:
        version: how many updates it has had, by the server's count.
    """

    version: int
    batches: Batches


class FitState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one call of `fit` at one version.

    Attributes:
        generation: which call of `fit` of the program it is, from 1.
        version: the global step: how many steps have been made.
        compiled: the optimizer as the program said it: its name and numbers, never code.
        plan: which server holds which rows (`parameters.placement`); None where the receiver has it.
        alone: whether the replica of rank 0 computes every part of every batch.
        steps_per_epoch: global steps; 0 where the numbers of epochs are not kept.
        feed: what numbers of batches and steps mean.
        replicas_in_sync: N, as the program saw it when the run began; 0 but for synchronous training.
        dealt: how batches are cut, and which parts of them have been used up.
        tally: the sums of epochs that have not ended.
        seen: for each server, its table of pushes; empty where it is not known.
        contents: for each server, which batches its part contains; empty where all contain what `dealt` says.
    """

    generation: int = 1
    version: int = 0
    max_steps: int = 0
    compiled: dict[str, Any] = msgspec.field(default_factory=dict)
    optimizer: dict[str, Any] = msgspec.field(default_factory=dict)
    model: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    lineage: Lineage = Lineage()
    alone: bool = False
    steps_per_epoch: int = 0
    first_epoch: int = 0
    feed: Feed = UNKNOWN
    replicas_in_sync: int = 0
    dealt: Dealt = NOTHING_DEALT
    tally: Open = ()
    history: dict[int, dict[int, Row]] = msgspec.field(default_factory=dict)
    seen: tuple[tuple[SeenPush, ...], ...] = ()
    contents: tuple[Contents, ...] = ()

    def but(self, **changed: Any) -> "FitState":
        return msgspec.structs.replace(self, **changed)

    def for_server(self, server: int) -> "FitState":
        """Return what a server is told: its own table of pushes and contents, and no model."""
        seen, contents = self.seen[server : server + 1], self.contents[server : server + 1]
        version = contents[0].version if contents else self.version
        return self.but(version=version, seen=seen, contents=contents, model=None)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return {"format": FORMAT, **found}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "FitState":
        """Read what a manifest holds; a `CheckpointError` names another version of dtrain, or the damage."""
        found = data.get("format", FORMAT)
        if type(found) is int and found != FORMAT:
            raise CheckpointError(
                f"its state of the run has format {found:.6g}; this version of dtrain reads format {FORMAT}: "
                "resume it with the version that wrote it"
            )
        try:
            if found != FORMAT:
                raise ValueError("its format is no number")
            state = msgspec.convert(data, cls, str_keys=True)
            msgspec.msgpack.encode(state)  # raises for numbers that cannot be sent to a server
            return state
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise CheckpointDamagedError(f"its state of the run cannot be read: {str(error)[:300]}") from None
