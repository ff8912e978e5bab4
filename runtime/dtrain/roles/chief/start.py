"""The start of a training: the model's first values, a checkpoint, or the end of the `fit` before it."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointDamagedError, CheckpointError, DtrainError, InputError
from dtrain.learning import optimizers
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.core.initializers import Constant
from dtrain.parameters.placement import Plan
from dtrain.parameters.table import VALUES
from dtrain.process.assignment import TaskAssignment
from dtrain.state.batch_cut import MISSING_MAX, NOTHING_DEALT, BatchCut
from dtrain.state.feed import UNKNOWN, Feed
from dtrain.state.fit_state import FitState, Lineage, Row
from dtrain.variables import VariableSpec
from dtrain.variables.lazy_table import LazyTable

ERROR_MAX = 1000
"""Characters of what is wrong: a checkpoint's words may be long."""


class Start(msgspec.Struct, frozen=True):
    """A state of `fit` with its arrays: what a training begins with.

    Attributes:
        state: of the call of `fit`, at the version that everything else belongs to.
        values: of every variable. A sparse one may be anything that can be sliced by rows; a `DrawnTable` is
            not shipped.
        slots: by slot name, then by variable.
        changed: which numbers of the program mean something else than when the checkpoint was written.
    """

    state: FitState
    plan: Plan
    values: Mapping[str, Any] = msgspec.field(default_factory=dict)
    slots: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    warning: str | None = None
    changed: str | None = None

    def but(self, **changed: Any) -> "Start":
        return replace(self, state=self.state.but(**changed))

    def going_on(self, cut: BatchCut, steps: int, *, sync: bool) -> "Start":
        state = self.state
        last = state.lineage.first_step + steps
        return self.but(max_steps=last, dealt=state.dealt.going_on(cut, sync=sync))

    @property
    def optimizer_state(self) -> OptimizerState:
        return OptimizerState(self.state.version - self.state.lineage.origin, self.slots)

    def where(self) -> list[str]:
        """Say at which step training goes on, or that it has ended, and what steps mean if that changed."""
        version, max_steps = self.state.version, self.state.max_steps
        if version > max_steps:
            where = (
                f"nothing is left to train: the newest checkpoint is of step {version}, beyond the "
                f"last one, {max_steps}"
            )
        elif version == max_steps:
            where = f"nothing is left to train: the newest checkpoint is of the last step, {version}"
        else:
            where = f"goes on from step {version} of {max_steps}"
        return [where] + ([f"steps mean something else than before: {self.changed}"] if self.changed else [])

    def table(self, name: str) -> dict[str, Any]:
        """Return a sparse variable's rows under ``""``, and each slot under its name."""
        slots = {slot: by_variable[name] for slot, by_variable in self.slots.items() if name in by_variable}
        return {VALUES: self.values[name], **slots}


def fresh(
    asked: FitState,
    plan: Plan,
    values: Mapping[str, Any],
    version: int = 0,
    state: OptimizerState | None = None,
) -> Start:
    """Return a start from given values, and a new optimizer or one in the state `state`.

    Args:
        state: of an optimizer that goes on.
    """
    state = state or OptimizerState(0, {})
    rule = optimizers.from_config(asked.compiled)
    slots: dict[str, dict[str, Any]] = {}
    for spec in plan.variables:
        if spec.trainable:
            for slot, array in _fresh_slots(rule, spec, values[spec.name]).items():
                slots.setdefault(slot, {})[spec.name] = state.slots.get(slot, {}).get(spec.name, array)
    lineage = Lineage(first_step=version, origin=version - state.step)
    return Start(asked.but(version=version, lineage=lineage, dealt=NOTHING_DEALT), plan, values, slots)


def _fresh_slots(rule: optimizers.Optimizer, spec: VariableSpec, value: Any) -> dict[str, Any]:
    """Return fresh slots; those of a sparse variable are drawn on the servers like its rows."""
    if not spec.sparse:
        return rule.initial_slots(np.asarray(value))
    constants = {
        slot: Constant(float(first[0])) for slot, first in rule.initial_slots(np.zeros(1, spec.dtype)).items()
    }
    return {
        slot: value if slot == "average" else DrawnTable(spec.shape, each, ())
        for slot, each in constants.items()
    }


def restored(directory: Path, plan: Plan, asked: FitState, *, by_server: bool = True) -> Start:
    """Return a start from the newest valid checkpoint of a folder.

    If the program has the same optimizer as then, its state in training goes on: its learning rate, for
    example. It begins anew with variables that were not trained there. If the feed is another than then,
    training goes on at the same example.

    Args:
        by_server: whether servers may begin with different batches, as in async, where they were saved so.

    Raises:
        CheckpointError: it holds other variables than the model, or the state of another optimizer.
        CheckpointDamagedError: its state of the run makes no sense.
    """
    try:
        start = _restored(directory, plan, asked, by_server=by_server)
        msgspec.msgpack.encode(start.state.dealt)  # raises for numbers that cannot be sent to a server
        return start
    except CheckpointError:
        raise
    except (DtrainError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise CheckpointDamagedError(
            f"the newest checkpoint in {directory} cannot be used: its state of the run makes no sense: "
            f"{type(error).__name__}: {str(error)[:ERROR_MAX]}"
        ) from error


def _restored(directory: Path, plan: Plan, asked: FitState, *, by_server: bool) -> Start:
    feed = asked.feed
    with _newest_that_fits(directory, plan, feed, by_server=by_server) as checkpoint:
        for spec in plan.variables:
            found = checkpoint.variables.get(spec.name)
            if found is None or found.shape != spec.shape:
                there = "is absent" if found is None else found.shape
                raise CheckpointError(
                    f"{checkpoint.path} does not fit this model: variable {spec.name} has shape "
                    f"{spec.shape} here and {there} there"
                )
        values = {spec.name: _read(checkpoint, spec, spec.name) for spec in plan.variables}
        before = checkpoint.state
        begun = before.feed.pipelines
        if begun and feed.pipelines and begun != feed.pipelines:
            raise CheckpointError(
                f"{checkpoint.path} was written by a run whose data function made {begun} pipelines, and now "
                f"makes {feed.pipelines}: set data.pipelines to {begun}, or start anew"
            )
        if (other := feed.other_rounds(before.feed)) is not None:
            raise CheckpointError(
                f"{checkpoint.path} was written with other rounds of local steps: {other}; take those of "
                "before, or begin a new run (model.load_weights takes the weights along)"
            )
        _check_files(before.feed, feed, checkpoint)
        slots = _restored_slots(checkpoint, plan, optimizers.from_config(asked.compiled), values)
        newest = [each.batches[0] for each in before.contents]
        if newest and max(newest) - min(newest) > MISSING_MAX:
            raise InputError(f"its servers cannot contain batches up to {newest}")
        state = asked.but(
            version=checkpoint.step,
            optimizer=before.optimizer if before.compiled == asked.compiled else asked.compiled,
            lineage=before.lineage,
            dealt=feed.goes_on(before.feed, before.dealt),
            tally=before.tally,
            history=before.history,
            seen=before.seen if len(before.seen) == plan.servers else (),
            contents=before.contents if by_server and _same_batches(before, plan, feed) else (),
        )
        return Start(state, plan, values, slots, checkpoint.warning, feed.change_from(before.feed))


def _check_files(before: Feed, now: Feed, checkpoint: checkpoints.OpenCheckpoint) -> None:
    """Raise a CheckpointError if a data file has changed since, so that batches had other examples."""
    changed = now.changed_files(before)
    if changed:
        old, new = changed[0]
        sizes = f"had {old.nbytes} bytes, now {new.nbytes}"
        found = sizes if old.nbytes != new.nbytes else f"has other contents in its {new.nbytes} bytes"
        others = f" (and {len(changed) - 1} more of its files)" if len(changed) > 1 else ""
        raise CheckpointError(
            f"{new.path}{others} has changed since {checkpoint.path} was written: it {found}; batches would "
            "have other examples than before: put the file back, or begin a new run (model.load_weights "
            "takes the weights along)"
        )


def _read(checkpoint: checkpoints.OpenCheckpoint, spec: VariableSpec, key: str) -> Any:
    return checkpoint.look_into(key) if spec.sparse else checkpoint.read(key)


def _restored_slots(
    checkpoint: checkpoints.OpenCheckpoint, plan: Plan, rule: optimizers.Optimizer, values: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return slots by name and variable; those of variables not trained there are fresh."""
    one = np.zeros(1, np.float32)
    names = list(rule.initial_slots(one))
    before, now = (
        f"{type(each).__name__} (state: {', '.join(each.initial_slots(one)) or 'none'})"
        for each in (optimizers.from_config(checkpoint.state.compiled), rule)
    )
    if before != now:
        raise CheckpointError(
            f"{checkpoint.path} was written with the optimizer {before}, and the program now has {now}: take "
            "that of before, or begin a new run (model.load_weights takes the weights along)"
        )
    slots: dict[str, dict[str, Any]] = {slot: {} for slot in names}
    for spec in plan.variables if names else ():
        keys = {slot: checkpoints.slot_key(spec.name, slot) for slot in names}
        if spec.trainable and keys[names[0]] not in checkpoint.arrays:
            begun = _fresh_slots(rule, spec, values[spec.name])
        else:
            begun = {slot: _read(checkpoint, spec, keys[slot]) for slot in names if spec.trainable}
        for slot, array in begun.items():
            slots[slot][spec.name] = array
    return slots


def _newest_that_fits(
    directory: Path, plan: Plan, feed: Feed, *, by_server: bool
) -> checkpoints.OpenCheckpoint:
    """Open the newest sound checkpoint of a folder, or raise a CheckpointError. One whose servers contain
    different batches does not fit other servers, nor a single version: then it is the newest one of the same
    call of `fit` without such differences.
    """
    newest = checkpoints.open_checkpoint(directory)
    state = newest.state
    if not state.contents or (by_server and _same_batches(state, plan, feed)):
        return newest
    for found in reversed(checkpoints.list_checkpoints(directory)):
        if found.step < newest.step:
            with contextlib.suppress(CheckpointError, FileNotFoundError):
                older = checkpoints.open_checkpoint(found.path)
                if older.state.generation == state.generation and not older.state.contents:
                    older.warning = (
                        f"{newest.path} has batches on some servers only, and fits those alone. "
                        f"Using {older.path} instead"
                    )
                    newest.close()
                    return older
                older.close()
    newest.close()
    servers = len(state.contents)
    raise CheckpointError(
        f"{newest.path} has batches on some servers only, and no whole checkpoint is left: it fits only the "
        f"{servers} servers that wrote it. Resume with `--ps {servers}`, updates: async, and the placement, "
        "partitioner and batch size that it was written with"
    )


def _same_batches(state: FitState, plan: Plan, feed: Feed) -> bool:
    """Return whether a checkpoint's servers held what this plan says, and batches have the same numbers."""
    before = state.feed.batch_size
    recounted = feed.batch_size and before and feed.batch_size != before
    return not recounted and state.plan is not None and Plan.from_dict(state.plan).hash == plan.hash


def continued(
    directory: Path,
    plan: Plan,
    asked: FitState,
    values: Mapping[str, Any],
    state: OptimizerState | None,
    *,
    same_owner: bool,
) -> Start:
    """Return a start with the model's values from the end of the `fit` before."""
    values = dict(values)
    with checkpoints.open_checkpoint(directory) as checkpoint:
        history = checkpoint.state.history
        # What a table of the servers has to say is in the checkpoint too, and stays there when they begin
        # anew.
        for name in [name for name, value in values.items() if type(value) is LazyTable]:
            values[name] = checkpoint.look_into(name)
    if not same_owner:
        return fresh(asked, plan, values, checkpoint.step, state).but(history=history)
    before = restored(directory, plan, asked.but(feed=UNKNOWN))  # the next data may be others
    lineage = Lineage(first_step=before.state.version, origin=before.state.lineage.origin)
    begun = before.but(
        feed=asked.feed, optimizer=asked.compiled, lineage=lineage, dealt=NOTHING_DEALT, tally=()
    )
    return replace(begun, values=values)


def saved_rows(directory: Path, fit: int) -> dict[int, Row]:
    if not checkpoints.list_checkpoints(directory):
        return {}
    with checkpoints.open_checkpoint(directory) as checkpoint:
        return checkpoint.state.history.get(fit, {})


def saved_generation(directory: Path) -> int:
    if not checkpoints.list_checkpoints(directory):
        return 0
    with checkpoints.open_checkpoint(directory) as checkpoint:
        return checkpoint.state.generation


def replicas_in_sync(directory: Path) -> int:
    """Return N of the synchronous run that saved in a folder; 0 where the cluster says it."""
    state = _newest_state(directory)
    return 0 if state is None else state.replicas_in_sync


def pipelines_of(assignment: TaskAssignment | None, directory: Path | None) -> int:
    """Return how many pipelines a function makes, by the spec or the saved run; 0 if neither says it."""
    said = None if assignment is None else assignment.spec.data.pipelines
    state = None if said or directory is None else _newest_state(directory)
    return said or (0 if state is None else state.feed.pipelines)


def _newest_state(directory: Path) -> FitState | None:
    for found in reversed(checkpoints.list_checkpoints(directory)):
        with contextlib.suppress(CheckpointError, OSError):
            return checkpoints.read_manifest(found.path).state
    return None


def fetch_newest(section: CheckpointSection, directory: Path, warn: Callable[[str], None]) -> None:
    """Own the copies that the spec's `checkpoint.remote` holds; begin with the newest if the directory has no
    sound checkpoint.

    Raises:
        CheckpointError: the copies cannot be read.
        CopiesTakenError: they are those of another run, and this one has checkpoints of its own.
        SpecError: no installed file system reads such a URL.
    """
    remote = checkpoints.remote_copies(section.remote)
    if remote is None:
        return
    begun = _holds_a_sound_one(directory, warn)
    remote.claim(directory, successor=not begun)
    if not begun and remote.fetch(directory, after=-1):
        if remote.warning:
            warn(remote.warning)
        warn(f"goes on from the newest checkpoint at {remote.url}")


def _holds_a_sound_one(directory: Path, warn: Callable[[str], None]) -> bool:
    if not checkpoints.list_checkpoints(directory):
        return False
    try:
        checkpoints.open_checkpoint(directory).close()
        return True
    except CheckpointDamagedError as error:
        warn(str(error))
        return False
