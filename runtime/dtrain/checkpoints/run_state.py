"""The state of a run beside its arrays, in every checkpoint: the only place from which a resume goes on.

It stands in the manifest as JSON. A checkpoint of another tool may have none of it; then all is as before the
first step.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from dtrain.errors import CheckpointDamagedError, CheckpointError
from dtrain.messages import Lineage, Row
from dtrain.protocol.applied_batches import Contents
from dtrain.protocol.feed import UNKNOWN, Feed
from dtrain.protocol.part_dealer import NOTHING_DEALT, Dealt
from dtrain.protocol.tally import Open

FORMAT = 2
Seen = list[list[tuple[str, int, int]]]


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one call of `fit` at one step.

    Attributes:
        format: the version of this form. The first one had no number, and did not say how batches are cut
            with backups, nor `replicas_in_sync`.
        generation: which call of `fit` it is, from 1.
        optimizer: the rule in force, as `optimizers.serialize` makes it.
        compiled: the rule as the program said it.
        model: its description; None if it is no data.
        plan: which server holds which rows; see `parameters.placement`.
        lineage: where the variables come from.
        seen: for each server, its table of pushes; see `protocol.exactly_once`.
        contents: for each server, which batches its part contains; empty where all contain what `dealt` says.
        replicas_in_sync: N, as the program saw it when the run began; 0 but for synchronous training.
        feed: what numbers of batches and steps mean.
        dealt: how batches are cut, and which parts of them have been used up.
        tally: the sums of epochs that have not ended.
        history: the numbers of the epochs that have, by call of `fit`.
    """

    format: int = FORMAT
    generation: int = 1
    optimizer: dict[str, Any] = msgspec.field(default_factory=dict)
    compiled: dict[str, Any] = msgspec.field(default_factory=dict)
    model: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    lineage: Lineage = Lineage()
    seen: Seen = msgspec.field(default_factory=list)
    contents: tuple[Contents, ...] = ()
    replicas_in_sync: int = 0
    feed: Feed = UNKNOWN
    dealt: Dealt = NOTHING_DEALT
    tally: Open = ()
    history: dict[int, dict[int, Row]] = msgspec.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        found: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return found

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "RunState":
        """Read what a manifest holds.

        Raises:
            CheckpointError: a newer version of dtrain wrote it.
            CheckpointDamagedError: it does not have this form.
        """
        found = data.get("format", 1)
        if isinstance(found, int) and found > FORMAT:
            raise CheckpointError(
                f"its state of the run has format {found:.6g}; this version of dtrain reads up to {FORMAT}: "
                "resume it with the version that wrote it"
            )
        try:
            state = msgspec.convert(data if "format" in data else _of_format_1(data), cls, str_keys=True)
            msgspec.msgpack.encode(state)  # raises for numbers that cannot be sent to a server
            return state
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise CheckpointDamagedError(f"its state of the run cannot be read: {str(error)[:300]}") from None


def _of_format_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the first version of this form says in the words of the present one."""
    lineage = {name: data[name] for name in Lineage.__struct_fields__ if name in data}
    tally = [(epoch, (names, bytes.fromhex(totals))) for epoch, names, totals in data.get("tally", ())]
    parts = data["dealt"][0] if data.get("dealt") else 0
    in_sync = parts if parts > 1 else 0
    return {**data, "format": 1, "lineage": lineage, "tally": tally, "replicas_in_sync": in_sync}
