"""The leader's thread: saves a generation on its schedule, gives it back to servers that lost it, saves the
last step.

One thread for all three, because they exclude each other: nothing is saved of servers that are in different
terms, and nothing is given back while it is being saved. It runs the machines of `chief` and `recovery`.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.errors import DtrainError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Lineage
from dtrain.roles.chief.driver import Leader, server_name
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.machine import CheckpointSchedule
from dtrain.roles.chief.recovery import TermWatch, next_term
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import Start, restored
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter
from dtrain.wire.answers import next_of

LOOK_S = 0.2
STOP_S = 5.0


@dataclass(frozen=True)
class Place:
    """Where a leader works: its ways to the servers, and what it keeps; `server_s` is how long it waits for
    one that is lost.
    """

    leader: Leader
    links: Sequence[HeartbeatLink]
    reporter: Reporter
    run_dir: Path
    section: CheckpointSection
    server_s: float

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return RunFiles(self.run_dir).checkpoints


class Keeper:
    """Keeps one generation on the servers and on the disk.

    Attributes:
        generation: what is kept.
        first_version: at which the present term began, or was found.
        busy: a term is being begun: servers may be slow to answer.
        own_step: the term and step of the leader's own replica, which knows sooner than a heartbeat says.
        failure: why it has given up; `on_failure` is called after it is set.
    """

    def __init__(self, place: Place, generation: Generation) -> None:
        self._place = place
        self.generation = generation
        reporter, folder = place.reporter, place.checkpoints
        self._saver = Saver(
            place.leader,
            generation,
            place.section,
            folder,
            self._step,
            reporter.warn,
            tried=reporter.tried_to_save,
        )
        self._schedule = CheckpointSchedule(place.section, time.monotonic(), -1)
        self._watch = TermWatch(generation.number, 0, 0.0)
        self.first_version = 0
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._finishing_since_s: float | None = None
        self._asked = self._torn = False
        self._saved: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[bool | DtrainError] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self.busy = False
        self.failure: DtrainError | None = None
        self.on_failure: Callable[[str], None] = lambda reason: None
        self.own_step: Callable[[], tuple[int, int]] = lambda: (0, 0)

    # In the program's own thread

    def begin(self, start: Start, *, save: bool) -> None:
        """Give every server its variables, and go on in the background.

        Args:
            start: what they are.
            save: whether no checkpoint knows them yet: then one comes first, so that no server trains what
                cannot be restored.

        Raises:
            CheckpointError: it cannot be saved.
            PeerError: a server is gone for good, or will not have it.
        """
        if save:
            self._saver.save_start(start)
        deadline = time.monotonic() + self._place.server_s
        while True:
            try:
                self._begin_term(start, reached=0)
                break
            except (PeerLostError, WaitTimeoutError):
                if time.monotonic() >= deadline:
                    raise
        self._thread.start()

    def attach(self) -> None:
        """The servers are training it already: go on in the background."""
        said = self._place.links[0].reply
        self._watch = TermWatch(said.generation, said.term, time.monotonic())
        self._took_up(said.version, said.lineage)
        if not checkpoints.list_checkpoints(
            self._place.checkpoints
        ):  # a leader by hand has begun another directory
            self._saver.save_cut(said.term)
        self._thread.start()

    def ordered(self, until: int | None, end: int | None) -> None:
        """The servers have had an order: to make no version beyond `until` before the next one, or to end at
        `end`.
        """
        self._saver.until = until
        if end is not None:
            self.generation = self._saver.generation = replace(self.generation, max_steps=end)

    def finish(self) -> bool:
        """Save the last step. False if the servers had to go back before that: training goes on.

        Raises:
            DtrainError: it cannot be saved.
        """
        if self.failure is not None:
            raise self.failure
        self._finishing_since_s = time.monotonic()
        self._wake.set()
        answer = next_of(self._finished)
        if isinstance(answer, DtrainError):
            raise answer
        return answer

    def stop(self, *, save: bool) -> None:
        """Nothing more is done in the background; with `save` one last checkpoint is written of what there
        is.

        Raises:
            DtrainError: it cannot be written.
        """
        self._stopped.set()
        self._wake.set()
        if away := [server_name(server) for server, link in enumerate(self._place.links) if link.away]:
            if save:
                self._place.reporter.warn(f"no last checkpoint: {', '.join(away)} is not there")
            return
        self._thread.join(STOP_S)
        if save and not self._thread.is_alive():
            self._saver.save_cut(self._watch.term, final=True)

    def save_now(self) -> None:
        """Write a checkpoint out of turn, unless the last one is written.

        Raises:
            DtrainError: the keeper has given up.
        """
        if self._stopped.is_set():
            return
        self._asked = True
        self._wake.set()
        while self._asked:
            if self.failure is not None:
                raise self.failure
            with contextlib.suppress(queue.Empty):
                self._saved.get(timeout=LOOK_S)

    def give_back(self) -> None:
        """Give every server the newest checkpoint again: what an earlier process of the leader assigned has
        reached some only.

        Raises:
            DtrainError: the keeper has given up.
        """
        self._torn = True
        self._wake.set()
        while self._torn:
            if self.failure is not None:
                raise self.failure
            with contextlib.suppress(queue.Empty):
                self._saved.get(timeout=LOOK_S)

    # In the background

    def _run(self) -> None:
        while not self._stopped.is_set() and self.failure is None:
            self._wake.wait(min(LOOK_S, self._schedule.wait_s(time.monotonic())))
            self._wake.clear()
            try:
                self._look()
            except DtrainError as error:
                if not self._stopped.is_set():
                    self._give_up(error)

    def _look(self) -> None:
        for link in self._place.links:
            if link.failure is not None:
                raise link.failure
        if self._torn or self._watch.lost([link.answer for link in self._place.links]):
            self._restore()
        elif self._finishing_since_s is not None:
            self._save_last(self._finishing_since_s)
        elif self._asked or self._schedule.due(self._step(), time.monotonic()):
            self._save_on_schedule()
            if self._asked:
                self._asked = False
                self._saved.put(True)

    def _give_up(self, error: DtrainError) -> None:
        self.failure = error
        self._finished.put(error)
        self.on_failure(str(error))

    def _save_on_schedule(self) -> None:
        step = self._step()
        try:
            self._saver.save_cut(self._watch.term)
            if not self._saver.whole:
                self._place.reporter.warn(
                    f"the checkpoint of step {step} has a batch on some servers only, which is dealt again"
                )
        except DtrainError as error:
            if not self._stopped.is_set():
                self._place.reporter.warn(f"no checkpoint of step {step}: {error}")
        self._schedule.saved(step, time.monotonic())

    def _save_last(self, since_s: float) -> None:
        try:
            reached = self._saver.save_cut(self._watch.term, final=True, at_least=self.generation.max_steps)
            if reached is not None:
                self._place.leader.conclude(self.generation.number, self._saver.rows)
                self._stopped.set()
            self._answer_finish(reached is not None)
        except (PeerLostError, PeerRefusedError, WaitTimeoutError):
            # A server has died; that is seen by its lease. One that will not answer for other reasons is
            # given up.
            if time.monotonic() - since_s >= self._place.server_s:
                raise

    def _answer_finish(self, saved: bool) -> None:
        if self._finishing_since_s is not None:
            self._finishing_since_s = None
            self._finished.put(saved)

    def _restore(self) -> None:
        """Give the newest checkpoint to every server, in a new term; if one is gone again, the next look
        comes back here.
        """
        place, generation = self._place, self.generation
        replies = [link.reply for link in place.links]
        versions = [reply.version for reply in replies if reply.generation == generation.number]
        start = restored(place.checkpoints, generation.plan, generation.optimizer, generation.feed)
        if start.warning:
            place.reporter.warn(start.warning)
        try:
            place.leader.reconnect()
            self._begin_term(start, reached=max([self.own_step()[1], *versions]))
        except (PeerLostError, WaitTimeoutError) as error:
            place.reporter.warn(f"the servers cannot be restored yet: {error}")
            return
        self._answer_finish(saved=False)
        if self._torn:
            self._torn = False
            self._saved.put(True)

    def _begin_term(self, start: Start, reached: int) -> None:
        """On every server, `reached` being the newest version known before. A term that failed somewhere is
        never used again.

        Nothing is made before the leader's order, its first or the one in force.
        """
        place, before = (
            self._place,
            max(start.lineage.rolled_back_steps, self._saver.lineage.rolled_back_steps),
        )

        def lineage(reached: int) -> Lineage:
            return msgspec.structs.replace(
                start.lineage, rolled_back_steps=before + max(0, reached - start.version)
            )

        replies = [link.reply for link in place.links]
        empty = [server_name(server) for server, reply in enumerate(replies) if reply.generation == 0]
        self._watch.term = next_term(replies, self._watch.term, place.links[0].incarnation)
        self.busy = True
        try:
            told = replace(start, lineage=lineage(reached))
            heard_of, directory = self._watch.heard_of, str(place.run_dir)
            given_up = place.leader.initialise(
                self.generation, told, self._watch.term, directory, start.version, heard_of
            )
        finally:
            self.busy = False
        self._watch.since_s = time.monotonic()
        reached = max(reached, given_up)
        self._took_up(start.version, lineage(reached))
        if reached > start.version:
            lost = f"{', '.join(empty) or 'a server'} had lost all variables"
            why = "the leader died while it assigned values" if self._torn else lost
            place.reporter.warn(
                f"{why}: every server goes back from step {reached} to the checkpoint of step {start.version}"
            )

    def _took_up(self, version: int, lineage: Lineage) -> None:
        """A term has begun at this version."""
        self.first_version, self._saver.lineage = version, lineage
        self._schedule.saved(version, time.monotonic())
        self._place.reporter.status.rolled_back_steps = lineage.rolled_back_steps

    def _step(self) -> int:
        """The newest version of this term that was heard of."""
        said, own = self._place.links[0].reply, self.own_step()
        heard = [step for term, step in ((said.term, said.version), own) if term == self._watch.term]
        return max([self.first_version, *heard])
