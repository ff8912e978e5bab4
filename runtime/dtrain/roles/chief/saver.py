"""Saving of the servers' state as a consistent cut, and of its copies to a remote store."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from dtrain import checkpoints
from dtrain.checkpoints import Streamed
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError, CopiesTakenError
from dtrain.messages import SnapshotReply, SnapshotRows
from dtrain.parameters.placement import Plan, ServerLayout, Shard
from dtrain.parameters.table import VALUES
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.start import Start
from dtrain.roles.server_answers import check_blocks
from dtrain.state.fit_state import FitState, Row
from dtrain.types import Array
from dtrain.variables import DTYPE_BYTES
from dtrain.variables.lazy_table import BLOCK_BYTES, row_blocks


class SavedArray(msgspec.Struct, frozen=True):
    """Values, or one slot, of a group or table, in `shards` one after another."""

    part: int
    name: str
    shards: tuple[Shard, ...]
    shape: tuple[int, ...]

    def questions(self, nbytes: int = BLOCK_BYTES) -> Iterator[SnapshotRows]:
        for start, stop in row_blocks(self.shape, DTYPE_BYTES[self.shards[0].dtype], nbytes):
            yield SnapshotRows(part=self.part, array=self.name, start=start, stop=stop)


def saved_arrays(layout: ServerLayout, slots: Sequence[str]) -> Iterator[SavedArray]:
    groups = [(group.shards, (group.size,)) for group in layout.groups]
    tables = [((table,), table.shape) for table in layout.tables]
    for part, (shards, shape) in enumerate([*groups, *tables]):
        for name in (VALUES, *(slots if shards[0].trainable else ())):
            yield SavedArray(part, name, shards, shape)


CUT_ATTEMPTS = 10

Tried = Callable[[int, str | None], None]
"""Hears the step of a checkpoint and why it could not be written; None: it was."""


class Holder(Protocol):
    """A source of the state of all servers."""

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]: ...

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array: ...


class Saver:
    """Saves one generation.

    Attributes:
        state: what is saved, as it began; each checkpoint has the newest version of it.
        until: no version is made beyond this one before the leader allows it; None: there is no such limit.
        whole: whether the last one is one cut through all servers.
    """

    def __init__(
        self,
        holder: Holder,
        plan: Plan,
        state: FitState,
        section: CheckpointSection,
        directory: Path,
        step: Callable[[], int],
        warn: Callable[[str], None],
        *,
        sync: bool,
        host: int = 0,
        turn: AbstractContextManager[Any] | None = None,
        tried: Tried = lambda step, failure: None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Begin.

        Args:
            turn: in which a cut is saved, because the holder remembers one snapshot only.
            tried: called after every attempt to write a checkpoint.
        """
        self._holder = holder
        self.state = state
        self._plan = plan
        self._sync = sync
        self._host = host
        self._section = section
        self.directory = directory
        self._clock = clock
        self._copies = CopiesThread.of(section, directory, warn, clock)
        self.step = step
        self._turn = turn or nullcontext()
        self._tried = tried
        self.until: int | None = None
        self.whole = True
        self.saved_step = 0
        self.rows: Mapping[int, Row] = {}

    def save_start(self, start: Start) -> None:
        self.state = start.state
        if start.state.generation > 1:
            checkpoints.keep_final(self.directory, start.state.generation - 1)
        arrays = {name: _streamed(value) for name, value in start.values.items()}
        for slot, by_variable in start.slots.items():
            arrays.update(
                {checkpoints.slot_key(name, slot): _streamed(array) for name, array in by_variable.items()}
            )
        self._save(start.state, arrays, final=False)
        if self._copies is not None:  # one that takes none is said now, and not at the end
            self._copies.finish()

    def save_cut(self, term: int = 0, *, final: bool = False, at_least: int = 0) -> int | None:
        """Save the state of the servers; return its step, or None where ps:0 has not reached `at_least`.
        Raises a CheckpointError if the servers agree on no version or the disk fails, else a PeerError.
        """
        attempt = Cut(self._sync, term, host=self._host)
        with self._turn:
            for _ in range(CUT_ATTEMPTS):
                last = self.state.max_steps if self.until is None else self.until
                replies = self._holder.snapshot(attempt, self.step(), last)
                own = replies[self._host]
                if own.state.version < at_least:
                    return None
                if attempt.accept(
                    [reply.state.version for reply in replies], [reply.assigned for reply in replies]
                ):
                    self.whole = attempt.whole(replies)
                    state = own.state.but(
                        seen=tuple(table for reply in replies for table in reply.state.seen),
                        contents=()
                        if self.whole
                        else tuple(each for reply in replies for each in reply.state.contents),
                    )
                    self._save(state, self._arrays(own.slots), final=final)
                    if final and self._copies is not None:
                        self._copies.finish(RETRY_S)
                    return own.state.version
        raise CheckpointError(
            f"the servers did not reach one version, with the same orders, in {CUT_ATTEMPTS} attempts"
        )

    def _arrays(self, slots: Sequence[str]) -> dict[str, Streamed]:
        """Return the servers' arrays in reading order, by variable and row."""
        plan = self._plan
        entries = {}
        for server, layout in enumerate(plan.layouts):
            for array in saved_arrays(layout, slots):
                pieces = Pieces(self._blocks(server, array))
                for shard in array.shards:
                    name = plan.variables[shard.variable].name
                    key = name if array.name == VALUES else checkpoints.slot_key(name, array.name)
                    entry = Streamed(shard.dtype, shard.shape, pieces.read(shard.size))
                    entries[checkpoints.part_key(key, shard.row_start)] = entry
        return entries

    def _blocks(self, server: int, array: SavedArray) -> Iterator[Array]:
        dtype, width = array.shards[0].dtype, math.prod(array.shape[1:])
        for question in array.questions():
            rows = self._holder.snapshot_rows(server, question)
            expected = [(dtype, width * (question.stop - question.start))]
            check_blocks(f"ps:{server}", "rows of a checkpoint", [rows], expected)
            yield rows

    def _save(self, state: FitState, arrays: Mapping[str, Array | Streamed], *, final: bool) -> None:
        begun = self.state
        state = state.but(
            compiled=begun.compiled,
            model=begun.model,
            plan=begun.plan,
            feed=begun.feed,
            lineage=begun.lineage,
            max_steps=begun.max_steps,
        )
        self.rows = state.history.get(state.generation, {})
        try:
            checkpoints.save(
                self.directory, state.version, arrays, state.to_json(), final=final, now=self._clock.wall()
            )
        except CheckpointError as error:
            self._tried(state.version, str(error))
            raise
        self.saved_step = state.version
        self._tried(state.version, None)
        checkpoints.rotate(
            self.directory,
            keep=self._section.keep,
            keep_every_n_hours=self._section.keep_every_n_hours,
            now=self._clock.wall(),
        )
        if self._copies is not None:
            self._copies.copy()


class Pieces:
    """Cuts flat arrays that come one after another into pieces of the size that is asked for."""

    def __init__(self, blocks: Iterator[Array]) -> None:
        self._blocks = blocks
        self._rest: Array = np.empty(0)

    def read(self, size: int) -> Iterator[Array]:
        """Yield the next `size` elements as flat arrays, views of the answers; ask for none earlier."""
        while size:
            if not self._rest.size:
                self._rest = next(self._blocks)
            piece = self._rest[:size]
            self._rest = self._rest[size:]
            size -= piece.size
            yield piece


def _streamed(source: Any) -> Array | Streamed:
    if isinstance(source, np.ndarray) or not source.shape:
        return np.asarray(source)
    blocks = (source[start:stop] for start, stop in row_blocks(source.shape, source.dtype.itemsize))
    return Streamed(source.dtype.name, source.shape, blocks)


PATIENCE_S = 600.0
"""The longest time for one upload when a caller waits for it."""
RETRY_S = 60.0
"""The time for which an upload of the last checkpoint is repeated."""
PAUSE_S = 1.0


class CopiesThread:
    """Keeps the copies at one URL equal to a local directory, as far as the store allows."""

    def __init__(
        self,
        remote: checkpoints.RemoteCopies,
        directory: Path,
        warn: Callable[[str], None],
        clock: Clock = SYSTEM,
    ) -> None:
        self._remote = remote
        self._directory = directory
        self._warn = warn
        self._clock = clock
        self._wake = clock.event()
        self._news = clock.event()
        self._asked = self._done = 0
        self._error: CheckpointError | None = None
        self._awaited = False
        clock.start(self._run, "copies")

    @classmethod
    def of(
        cls, section: CheckpointSection, directory: Path, warn: Callable[[str], None], clock: Clock = SYSTEM
    ) -> "CopiesThread | None":
        remote = checkpoints.remote_copies(section.remote)
        return None if remote is None else cls(remote, directory, warn, clock)

    def copy(self) -> None:
        """Start copying the directory's changes; return at once."""
        self._asked += 1
        self._wake.set()

    def finish(self, retry_s: float = 0.0) -> None:
        """Copy what there is now, with repetitions; raise a `CheckpointError` in the end."""
        deadline = self._clock.now() + retry_s
        self._awaited = True
        try:
            while (error := self._copied()) is not None:
                if self._clock.now() >= deadline or isinstance(error, CopiesTakenError):
                    raise type(error)(f"{error}; the checkpoints themselves are in {self._directory}")
                self._clock.sleep(PAUSE_S)
        finally:
            self._awaited = False

    def _copied(self) -> CheckpointError | None:
        self.copy()
        asked, deadline = self._asked, self._clock.now() + PATIENCE_S
        while self._done < asked:
            if not self._news.wait(deadline - self._clock.now()):
                return CheckpointError(f"copying to {self._remote.url} takes longer than {PATIENCE_S:g} s")
            self._news.clear()
        return self._error

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            asked = self._asked
            error = None
            try:
                self._remote.upload(self._directory)
            except CheckpointError as found:
                error = found
                if not self._awaited:
                    self._warn(f"{error}; it is tried again with the next checkpoint")
            self._error = error
            self._done = asked
            self._news.set()
