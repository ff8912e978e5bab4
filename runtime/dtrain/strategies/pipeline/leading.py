"""One call of `fit` in the stage that leads: it saves, gives orders, and begins terms."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from dtrain.errors import CheckpointError, DtrainError, PeerError, PeerLostError
from dtrain.messages import Control, SnapshotReply, SnapshotRows
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.start import Start
from dtrain.roles.stage.driver import LeadingDriver, TermOverError
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.in_process.training import LocalTraining
from dtrain.strategies.interface import Compute, FitOrder, Stepped
from dtrain.strategies.pipeline.parts import StageParts, share_of
from dtrain.strategies.pipeline.planning import hash_of
from dtrain.strategies.pipeline.training import StageTraining
from dtrain.types import Array


class StagesHolder(FitHolder):
    """The state of all stages, as the leader saves it.

    Attributes:
        finishing: whether the leader waits for the last checkpoint, and can go back when that fails.
    """

    def __init__(self, training: "LeadingTraining", start: Start) -> None:
        super().__init__(start, training.store, training.state.dealer, training.lock)
        self._training = training
        self._driver = training.driver
        self.plan = training.parts.plan
        self.finishing = False

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        """Have every stage remember what it holds, while no step is under way."""
        try:
            with self._training.boundary:
                own = super().snapshot(cut, newest, last)
                return own + self._driver.snapshot(self.global_step, self._training.parts.owners[1:])
        except (TermOverError, PeerError) as error:
            if self.finishing:
                return [SnapshotReply(state=self.begun.but(version=-1), slots=())]
            raise CheckpointError(f"a stage has lost its variables: {error}") from None

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        if not server:
            return super().snapshot_rows(server, question)
        try:
            return self._driver.snapshot_rows(self._training.parts.owners[server], question)
        except TermOverError as error:  # a stage has died: the last checkpoint is tried again
            raise PeerLostError(str(error)) from None


class LeadingTraining(StageTraining):
    """One call of `fit` in the stage that leads."""

    leads = True

    def __init__(
        self, parts: StageParts, start: Start, term: int, again: Callable[[], Start], tell: Callable[[], None]
    ) -> None:
        """Begin a term in all stages; `again` reads the newest checkpoint, `tell` tells of each later one."""
        assert isinstance(parts.driver, LeadingDriver)
        self.driver = parts.driver
        self._again = again
        self._tell = tell
        self._known: dict[str, Array] = {}
        self._give(parts, start, term)
        super().__init__(parts, start, term)
        self.state = StagesHolder(self, parts.start_of(parts.place, start))

    def _give(self, parts: StageParts, start: Start, term: int) -> None:
        """Give every other stage its variables."""
        places = range(self.driver.stages)
        shares = [share_of(parts.start_of(place, start), term, parts.begins) for place in places]
        self.driver.give(term, shares)

    def go_back(self) -> None:
        """Begin the next term in all stages from the newest checkpoint."""
        parts, reached = self.parts, self.global_step
        lost = [str(self.driver.machine.tasks[stage]) for stage in sorted(self.driver.machine.lost)]
        rolled_back = self.state.begun.lineage.rolled_back_steps
        called = parts.number, hash_of(parts.problem), parts.incarnation()
        term = self.driver.gather(*called, self.driver.patience_s, voids=True)
        start = self._again()
        version = start.state.version
        lineage = replace(start.state.lineage, rolled_back_steps=rolled_back + max(0, reached - version))
        start = start.but(lineage=lineage)
        self._give(parts, start, term)
        self._known = {}
        self._hold_again(start)
        if self.saver is not None:
            self.saver.go_back_to(start)
        self._begin(term)
        self._tell()
        parts.reporter.warn(
            f"{', '.join(lost) or 'a stage'} had lost its variables: every stage goes back from step "
            f"{reached} to the checkpoint of step {version}"
        )

    def _read(self, name: str) -> Array:
        if self._given_up or name in self.store.variables:
            return super()._read(name)
        self._known = self._known or self._fetched()
        return self._known[name]

    def step(self, compute: Compute) -> Stepped:
        self._known = {}  # so that the leader holds the whole model only while a callback reads it
        return super().step(compute)

    def stands(self) -> None:
        super().stands()
        self.heed_end()

    def rest(self) -> None:
        replica = self.replicas[0]
        if not replica.rests:
            self.driver.order(self._control(FitOrder(), replica.begun))
            replica.rest()

    def save(self, directory: Path | None = None) -> None:
        try:
            self.rest()
        except TermOverError:
            self.go_back()
        super().save(directory)

    def _fetched(self) -> dict[str, Array]:
        """Return the variables of all other stages; after a loss those of the checkpoint."""
        while True:
            try:
                self.rest()
                return {
                    spec.name: block.reshape(spec.shape)
                    for stage in self.parts.owners[1:]
                    for spec, block in zip(
                        self.parts.plans[stage].variables, self.driver.values_of(stage), strict=True
                    )
                }
            except TermOverError:
                self.go_back()

    def _conclude(self) -> bool:
        """Save the last step, and end the call of `fit` in all stages."""
        assert isinstance(self.state, StagesHolder)
        if self.saver is not None:
            self.state.finishing = True
            try:
                saved = self.saver.finish()
            finally:
                self.state.finishing = False
            if not saved:
                self.go_back()
                return False
        variables = self.parts.problem.variables
        self.driver.conclude(
            dict(self.recorded),
            lambda: [np.ascontiguousarray(self.weights[spec.name]).reshape(-1) for spec in variables],
        )
        return True

    def close(self, error: BaseException | None = None) -> None:
        super().close(error)
        if self.saver is not None:
            self.saver.stop()

    def _leave(self) -> None:
        """Write a last checkpoint, if all stages are there; none of them is needed any more then."""
        verdict = None if self._voted is None else self.driver.machine.verdict_on(self._voted[0].batch)
        if verdict is not None:
            self._obey_verdict(verdict, None)
        try:
            if not self.replicas[0].rests:
                raise CheckpointError("batches are in flight, which other stages pass back no more")
            if not self.replicas[0].flushes:
                self.driver.order(self._control(FitOrder(stop=True), self.global_step))
            if self.saver is not None:
                self.saver.stop(save=True)
        except DtrainError as failed:
            self.parts.reporter.warn(f"no last checkpoint: {failed}")
        self.driver.release()

    def order(self, order: FitOrder) -> None:
        """Carry out an order in all stages; after a loss again, if no step was lost with it."""
        weights = order.weights or {}
        while order.optimizer is not None:
            before = self.global_step
            try:
                self.rest()
                specs = [plan.variables if weights else () for plan in self.parts.plans]
                flat = [[np.ravel(weights[spec.name]) for spec in each] for each in specs]
                self.driver.order(self._control(order, self.global_step), flat)
                break
            except TermOverError:
                self.go_back()
                if self.global_step < before:
                    return
        own = {name: weights[name] for name in self.store.variables if weights}
        LocalTraining.order(self, replace(order, weights=own))
        if own:
            self.replicas[0].forget()
        self._known = {}

    def _control(self, order: FitOrder, version: int) -> Control:
        term = self.driver.machine.term
        return Control(
            generation=self.parts.number,
            number=(term, version),
            term=term,
            version=version,
            optimizer=order.optimizer or {},
            stop=order.stop,
        )
