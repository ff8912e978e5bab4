"""The start of a training: the model's first values, a checkpoint, or the end of the `fit` before it."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointDamagedError, CheckpointError, DtrainError, InputError
from dtrain.learning import optimizers
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.core.initializers import Constant
from dtrain.messages import Lineage, Row
from dtrain.parameters.placement import Plan
from dtrain.parameters.table import VALUES
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.applied_batches import MISSING_MAX, Contents
from dtrain.protocol.feed import UNKNOWN, Feed
from dtrain.protocol.part_dealer import NOTHING_DEALT, Dealt
from dtrain.protocol.tally import Open
from dtrain.variables import VariableSpec
from dtrain.variables.lazy_table import LazyTable

ERROR_MAX = 1000
"""Characters of what is wrong: a checkpoint's words may be long."""


@dataclass(frozen=True)
class Start:
    """Everything that the servers are initialised with.

    Attributes:
        version: 0, or the global step that everything else belongs to.
        values: of every variable. A sparse one may be anything that can be sliced by rows; a `DrawnTable` is
            not shipped.
        slots: by slot name, then by variable.
        optimizer: the rule in force: the program's, with numbers that may have changed since.
        seen: for each server, its table of pushes (`protocol.exactly_once`); empty where it is not known.
        contents: for each server, which batches its part contains; empty where all contain what `dealt` says.
        warning: what is to be said about the checkpoint.
        dealt: which parts have been used up; see `protocol.part_dealer`.
        tally: the sums of epochs that have not ended; see `protocol.tally`.
        history: the numbers of the epochs that have, by call of `fit`.
        changed: which numbers of the program mean something else than when the checkpoint was written.
    """

    version: int
    values: Mapping[str, Any]
    slots: Mapping[str, Mapping[str, Any]]
    optimizer: dict[str, Any]
    seen: Sequence[Sequence[tuple[str, int, int]]] = ()
    warning: str | None = None
    lineage: Lineage = field(default_factory=Lineage)
    dealt: Dealt = NOTHING_DEALT
    tally: Open = ()
    history: Mapping[int, Mapping[int, Row]] = field(default_factory=dict)
    changed: str | None = None
    contents: Sequence[Contents] = ()

    @property
    def optimizer_state(self) -> OptimizerState:
        """Return the state of the optimizer."""
        return OptimizerState(self.version - self.lineage.origin, self.slots)

    def where(self, max_steps: int) -> list[str]:
        """Say from which step training goes on, or that it has ended already; and what steps mean now if that
        has changed.
        """
        if self.version > max_steps:
            where = (
                f"nothing is left to train: the newest checkpoint is of step {self.version}, beyond the "
                f"last one, {max_steps}"
            )
        elif self.version == max_steps:
            where = f"nothing is left to train: the newest checkpoint is of the last step, {self.version}"
        else:
            where = f"goes on from step {self.version} of {max_steps}"
        return [where] + ([f"steps mean something else than before: {self.changed}"] if self.changed else [])

    def table(self, name: str) -> dict[str, Any]:
        """Return a sparse variable's rows under ``""``, and each slot under its name."""
        slots = {slot: by_variable[name] for slot, by_variable in self.slots.items() if name in by_variable}
        return {VALUES: self.values[name], **slots}


def fresh(
    plan: Plan,
    optimizer: Mapping[str, Any],
    values: Mapping[str, Any],
    version: int = 0,
    state: OptimizerState | None = None,
) -> Start:
    """Return a start from given values, and a new optimizer or one in the state `state`."""
    state = state or OptimizerState(0, {})
    rule = optimizers.from_config(optimizer)
    slots: dict[str, dict[str, Any]] = {}
    for spec in plan.variables:
        if spec.trainable:
            for slot, array in _fresh_slots(rule, spec, values[spec.name]).items():
                slots.setdefault(slot, {})[spec.name] = state.slots.get(slot, {}).get(spec.name, array)
    return Start(
        version,
        values,
        slots,
        dict(optimizer),
        lineage=Lineage(first_step=version, origin=version - state.step),
    )


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


def restored(
    directory: Path, plan: Plan, optimizer: Mapping[str, Any], feed: Feed = UNKNOWN, *, by_server: bool = True
) -> Start:
    """Return a start from the newest valid checkpoint of a folder.

    If the program has the same `optimizer` as then, its state in training goes on: its learning rate, for
    example. It begins anew with variables that were not trained there. If `feed` is another than then,
    training goes on at the same example.

    Args:
        directory: the folder.
        plan, optimizer: the model's.
        by_server: whether servers may begin with different batches, as in async, where they were saved so.

    Raises:
        CheckpointError: it holds other variables than the model, or another optimizer's slots.
        CheckpointDamagedError: its state of the run makes no sense.
    """
    try:
        start = _restored(directory, plan, optimizer, feed, by_server=by_server)
        msgspec.msgpack.encode(start.dealt)  # raises for numbers that cannot be sent to a server
        return start
    except CheckpointError:
        raise
    except (DtrainError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise CheckpointDamagedError(
            f"the newest checkpoint in {directory} cannot be used: its state of the run makes no sense: "
            f"{type(error).__name__}: {str(error)[:ERROR_MAX]}"
        ) from error


def _restored(
    directory: Path, plan: Plan, optimizer: Mapping[str, Any], feed: Feed, *, by_server: bool
) -> Start:
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
        state = checkpoint.state
        begun = state.feed.pipelines
        if begun and feed.pipelines and begun != feed.pipelines:
            raise CheckpointError(
                f"{checkpoint.path} was written by a run whose data function made {begun} pipelines, and now "
                f"makes {feed.pipelines}: set data.pipelines to {begun}, or start anew"
            )
        _check_files(state.feed, feed, checkpoint)
        slots = _restored_slots(checkpoint, plan, optimizers.from_config(optimizer), values)
        newest = [each.batches[0] for each in state.contents]
        if newest and max(newest) - min(newest) > MISSING_MAX:
            raise InputError(f"its servers cannot contain batches up to {newest}")
        seen = state.seen if len(state.seen) == plan.servers else []
        in_force = state.optimizer if state.compiled == optimizer else dict(optimizer)
        return Start(
            checkpoint.step,
            values,
            slots,
            in_force,
            seen,
            checkpoint.warning,
            state.lineage,
            feed.goes_on(state.feed, state.dealt),
            state.tally,
            state.history,
            feed.change_from(state.feed),
            state.contents if by_server and _same_batches(state, plan, feed) else (),
        )


def _check_files(before: Feed, now: Feed, checkpoint: checkpoints.Checkpoint) -> None:
    """Raise a `CheckpointError` if a file of data has changed since: batches had other examples."""
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


def _read(checkpoint: checkpoints.Checkpoint, spec: VariableSpec, key: str) -> Any:
    """Return an array of a variable; of a table, one that reads rows when it is indexed."""
    return checkpoint.look_into(key) if spec.sparse else checkpoint.read(key)


def _restored_slots(
    checkpoint: checkpoints.Checkpoint, plan: Plan, rule: optimizers.Optimizer, values: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return a checkpoint's slots by slot and variable; those of variables not trained there are fresh."""
    one = np.zeros(1, np.float32)
    names = list(rule.initial_slots(one))
    same_slots = names == list(optimizers.from_config(checkpoint.state.compiled).initial_slots(one))
    slots: dict[str, dict[str, Any]] = {slot: {} for slot in names}
    for spec in plan.variables if names else ():
        keys = {slot: checkpoints.slot_key(spec.name, slot) for slot in names}
        if spec.trainable and same_slots and keys[names[0]] not in checkpoint.arrays:
            begun = _fresh_slots(rule, spec, values[spec.name])
        else:
            begun = {slot: _read(checkpoint, spec, keys[slot]) for slot in names if spec.trainable}
        for slot, array in begun.items():
            slots[slot][spec.name] = array
    return slots


def _newest_that_fits(directory: Path, plan: Plan, feed: Feed, *, by_server: bool) -> checkpoints.Checkpoint:
    """Open the newest sound checkpoint of a folder.

    One in which not all servers contain the same batches would be a mixture on other servers, or where they
    have to be of one version. Then it is the newest one of the same call of `fit` that is none.

    Raises:
        CheckpointError: there is none.
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


def _same_batches(state: checkpoints.RunState, plan: Plan, feed: Feed) -> bool:
    """Return whether a checkpoint's servers held what this plan says, and batches have the same numbers."""
    before = state.feed.batch_size
    recounted = feed.batch_size and before and feed.batch_size != before
    return not recounted and state.plan is not None and Plan.from_dict(state.plan).hash == plan.hash


def continued(
    directory: Path,
    plan: Plan,
    optimizer: Mapping[str, Any],
    values: Mapping[str, Any],
    state: OptimizerState | None,
    *,
    same_owner: bool,
) -> Start:
    """Return a start from the end of the `fit` before with the model's values; a new optimizer is fresh."""
    values = dict(values)
    with checkpoints.open_checkpoint(directory) as checkpoint:
        history = checkpoint.state.history
        # What a table of the servers has to say is in the checkpoint too, and stays there when they begin
        # anew.
        for name in [name for name, value in values.items() if type(value) is LazyTable]:
            values[name] = checkpoint.look_into(name)
    if same_owner:
        before = restored(directory, plan, optimizer)
        lineage = Lineage(first_step=before.version, origin=before.lineage.origin)
        return replace(
            before, values=values, optimizer=dict(optimizer), lineage=lineage, dealt=NOTHING_DEALT, tally=()
        )
    return replace(fresh(plan, optimizer, values, checkpoint.step, state), history=history)


def saved_rows(directory: Path, fit: int) -> dict[int, Row]:
    """Return the epochs' numbers of a `fit`, from a folder's newest sound checkpoint; empty without one."""
    if not checkpoints.list_checkpoints(directory):
        return {}
    with checkpoints.open_checkpoint(directory) as checkpoint:
        return checkpoint.state.history.get(fit, {})


def saved_generation(directory: Path) -> int:
    """Return the call of `fit` of a folder's newest sound checkpoint; 0 without one."""
    if not checkpoints.list_checkpoints(directory):
        return 0
    with checkpoints.open_checkpoint(directory) as checkpoint:
        return checkpoint.state.generation


def replicas_in_sync(directory: Path) -> int:
    """Return N of the synchronous run that saved in a folder, at its start; 0 where the cluster says it."""
    state = _newest_state(directory)
    return 0 if state is None else state.replicas_in_sync


def pipelines_of(assignment: TaskAssignment | None, directory: Path | None) -> int:
    """Return how many pipelines a function of an InputContext makes: by the spec, else as in the run that
    saved in a folder (None: there is none); 0 if neither says a number.
    """
    said = None if assignment is None else assignment.spec.data.pipelines
    state = None if said or directory is None else _newest_state(directory)
    return said or (0 if state is None else state.feed.pipelines)


def _newest_state(directory: Path) -> checkpoints.RunState | None:
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
    remote.claim(directory, heir=not begun)
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
