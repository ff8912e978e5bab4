"""Everything of one call of `fit` that a checkpoint holds, in a task without servers: variables and slots,
which parts are dealt, the sums and numbers of epochs.

It knows neither threads nor other processes: a `Training` says when nobody else writes.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from dtrain.checkpoints import OptimizerState
from dtrain.config import CheckpointSection
from dtrain.messages import SnapshotReply, SnapshotRows
from dtrain.parameters.placement import Plan
from dtrain.parameters.store import Store
from dtrain.protocol.part_dealer import PartDealer
from dtrain.protocol.tally import Tally
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.saver import Saver, Tried
from dtrain.roles.chief.start import Start, fresh
from dtrain.state.fit_state import FitState, Row, Sums
from dtrain.strategies.interface import Problem, Weights
from dtrain.types import Array


class FitHolder:
    """The variables and the account of one call of `fit` while it trains.

    Attributes:
        begun: the state with which it began.
        store: variables and slots. Its arrays are what `weights` shows.
        tally: the sums and numbers of epochs.
        global_step: versions made so far.
    """

    def __init__(
        self,
        start: Start,
        store: Store,
        dealer: PartDealer,
        guard: AbstractContextManager[object],
    ) -> None:
        """Begin at `start`, of which `store` has the variables. Within `guard` nobody else writes."""
        self.plan = start.plan
        self.go_on_from(start, store, dealer)
        self._guard = guard
        self._saving = threading.Lock()

    def go_on_from(self, start: Start, store: Store, dealer: PartDealer) -> None:
        """Hold what `start` has, also in the place of what training has made since."""
        self.begun = start.state
        self.store = store
        self.dealer = dealer
        self.global_step = start.state.version
        self.weights = store.variables
        self.tally = Tally.of(start.state)

    def guard_by(self, guard: AbstractContextManager[object]) -> None:
        """Let nobody else write within `guard`."""
        self._guard = guard

    def assign(self, values: Weights) -> None:
        """Set variables by name; what a snapshot remembers stays as it was."""
        self.store.keep_snapshots()
        for name, value in values.items():
            self.weights[name][...] = value

    def count(self, sums: Sequence[Sums | None]) -> None:
        """Count the contributions to the step that is being made."""
        for each in sums:
            self.tally.add(self.global_step, each)

    @property
    def history(self) -> dict[int, dict[int, Row]]:
        """The numbers of every epoch that has ended, by call of `fit`."""
        own = {self.begun.generation: dict(self.tally.rows)} if self.tally.kept and self.tally.rows else {}
        return {**self.begun.history, **own}

    # For checkpoints

    def saver_into(
        self,
        directory: Path,
        section: CheckpointSection,
        warn: Callable[[str], None],
        tried: Tried = lambda step, failure: None,
    ) -> Saver:
        """Return what saves this training, never while another one does."""
        return Saver(
            self,
            self.plan,
            self.begun,
            section,
            directory,
            lambda: self.global_step,
            warn,
            sync=True,
            turn=self._saving,
            tried=tried,
        )

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        with self._guard:
            return [self.mark()]

    def mark(self) -> SnapshotReply:
        """Remember everything as it is now, for a checkpoint; nobody else writes meanwhile."""
        self.store.mark()
        state = self.begun.but(
            version=self.global_step,
            dealt=self.dealer.export(),
            optimizer=self.store.optimizer_config,
            tally=self.tally.open(),
            history=self.history,
            seen=(),
            contents=(),
        )
        return SnapshotReply(state=state, slots=self.store.slot_names)

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        with self._guard:
            return self.store.read_snapshot(question.part, question.array, question.start, question.stop)

    # For the next call of fit

    def continuation(self, asked: FitState, plan: Plan, problem: Problem, *, same_owner: bool) -> Start:
        """Return where the next `fit` starts; another model's optimizer, or a new one, starts afresh."""
        step = self.global_step
        state = (
            OptimizerState(step - self.store.origin, self.store.all_slots()) if same_owner else problem.state
        )
        return fresh(asked, plan, problem.initial_values(), step, state).but(history=self.history)

    @property
    def optimizer_state(self) -> OptimizerState:
        with self._guard:
            slots = {
                slot: {name: view.copy() for name, view in views.items()}
                for slot, views in self.store.all_slots().items()
            }
            return OptimizerState(self.global_step - self.store.origin, slots)
