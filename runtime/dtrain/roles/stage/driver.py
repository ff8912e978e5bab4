"""Runs a stage's machine: its handler, its connections, the waits of the training thread. It decides nothing.

The training thread computes and waits here; other tasks ask in threads of the service. One lock is held while
the machine takes a message and while what it answers is copied. Connections to other stages last for a term.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import Condition
from typing import TypeVar

import numpy as np

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.control.interface import Send
from dtrain.control.roster import obstacle
from dtrain.errors import (
    CallsDifferError,
    DtrainError,
    PeerError,
    PeerLostError,
    PeerRefusedError,
    WaitTimeoutError,
)
from dtrain.messages import (
    Acknowledged,
    AnyMessage,
    Conclude,
    Control,
    Controlled,
    EnterPipeline,
    Hello,
    LinkProbe,
    NotReady,
    Over,
    PipelineTerm,
    Pull,
    Refusal,
    Row,
    Rows,
    Snapshot,
    SnapshotReply,
    SnapshotRows,
    StageTensor,
    StageVerdict,
    StageVote,
    Sums,
    Values,
    VoidTerm,
)
from dtrain.process.clock import LOOK_S, SYSTEM
from dtrain.protocol.partition_plan import StageLink
from dtrain.roles.stage.machine import HeldStage, LeadingStage, StageMachine
from dtrain.runs.reporting import Reporter
from dtrain.state.stage_layout import ArrayRoute, ArrayTag
from dtrain.types import Array, Blocks, Shape
from dtrain.wire.channel import Answer, Caller
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.frames import UNKNOWN, Frame, Limits
from dtrain.wire.handshake import refusal
from dtrain.wire.peer import Peer

T = TypeVar("T")
HEADER_BYTES = 1 << 20
LEAST_LIMIT_BYTES = 64 << 20
"""The least limit of the bytes of a message of another stage, however small its microbatches were."""
PROBES = 5
"""How often the shortest time to a stage and back is sought; the first time opens the connection."""
LEAST_PROBE, MOST_PROBE, PROBE_S, SHORTEST_S = 1 << 14, 1 << 22, 0.05, 1e-6
"""The numbers that measure a connection, and the seconds for which they are to be on their way."""
UNHEARD_MAX = 64
"""The most arrays on a connection that are not acknowledged yet: a socket holds so many answers."""
VOID_S = 2.0
"""How long a stage may take to hear that a term is over, before the next one is told."""


class TermOverError(DtrainError):
    """The term is over: its step is dropped, and the stage enters the next one."""


class StageStoppedError(TermOverError):
    """The leader has ended training at this version."""


class StageDriver:
    """One stage of a task, for all of its calls of `fit`. It is also the handler of the task's service.

    Attributes:
        deadline_s: when every wait ends at the latest, where this task is about to end.
        look_for_end: ends this task from within a wait, where it has been told to end.
    """

    answers_at_once = True

    def __init__(
        self,
        machine: StageMachine,
        hello: Hello,
        cluster: ClusterSpec,
        connect: ConnectTask,
        reporter: Reporter,
        patience_s: float,
        away: Callable[[TaskId], bool] = lambda task: False,
    ) -> None:
        """Make no connection yet; another stage may be away for `patience_s`; `away`: it has no lease."""
        self.machine = machine
        self.cond = Condition()
        self.ended = SYSTEM.event()
        self.failure: str | None = None
        self.deadline_s: float | None = None
        self.look_for_end: Callable[[], None] = lambda: None
        self._hello = hello
        self._cluster = cluster
        self._connect = connect
        self._reporter = reporter
        self.patience_s = patience_s
        self._away = away
        self._entering: Peer | None = None
        self._peers: dict[tuple[str, int], Peer] = {}
        self._moved = (0, 0)
        self._unanswered: dict[tuple[str, int], deque[ArrayTag | int]] = {}
        self._widest_bytes = self._gradient_bytes = 0

    # The handler

    def limits(self, hello: Hello) -> Limits:
        """See `Handler.limits`: the leader gives variables of any size, a neighbour a microbatch at most.

        Batches may be of several sizes, as those of sequences of similar lengths are.
        """
        machine = self.machine
        if hello.task == str(machine.tasks[0]) or not self._widest_bytes:
            return UNKNOWN
        return Limits(HEADER_BYTES, max(LEAST_LIMIT_BYTES, 16 * self._widest_bytes, self._gradient_bytes))

    def refuse(self, hello: Hello) -> str | None:
        return refusal(self._hello, hello)

    def received(self, caller: Caller, frame: Frame) -> Answer:
        sender = TaskId.parse(caller.hello.task)
        reason = obstacle(frame.message, sender, self._cluster)
        with self.cond:
            refused = [] if reason is None else [Send(caller, Refusal(reason=reason))]
            self.carry_out(refused or self.machine.receive(caller, sender, frame.message, frame.blocks))
            if self.machine.is_over:
                self._break("the term is over")
            self.cond.notify_all()
        return Answer.ONE

    def disconnected(self, caller: Caller) -> None:
        with self.cond:
            self.machine.disconnected(caller)

    def carry_out(self, actions: Sequence[Send]) -> None:
        for action in actions:
            action.caller.send(action.message, action.blocks)  # type: ignore[attr-defined]

    def abort(self, reason: str) -> None:
        """From any thread: end every wait of this task with this reason."""
        with self.cond:
            self.failure = reason
            self._break(reason)
            if self._entering is not None:
                self._entering.abort(reason)
            self.cond.notify_all()

    def _break(self, reason: str) -> None:
        for peer in self._peers.values():
            peer.abort(reason)

    # The training thread

    def expect(self, shapes: Mapping[int, Shape], gradient_bytes: int) -> None:
        """Take arrays of these shapes from now on, see `StageMachine`, and gradients of so many bytes."""
        with self.cond:
            self.machine.shapes = shapes
            self._widest_bytes, self._gradient_bytes = 0, gradient_bytes

    @property
    def stages(self) -> int:
        return len(self.machine.tasks)

    @property
    def bytes_moved(self) -> tuple[int, int]:
        channels = [peer.channel for peer in list(self._peers.values()) if peer.channel is not None]
        sent, received = self._moved
        return (
            sent + sum(channel.bytes_sent for channel in channels),
            received + sum(channel.bytes_received for channel in channels),
        )

    def begin(
        self, generation: int, term: int, version: int, held: HeldStage, routes: Sequence[ArrayRoute]
    ) -> None:
        """Begin a term with these variables, on new connections."""
        with self.cond:
            self._moved = self.bytes_moved
            for peer in [*self._peers.values(), *([self._entering] if self._entering else [])]:
                peer.close()
            self._entering = None
            self._peers.clear()
            self._unanswered.clear()
            self.carry_out(self.machine.begin(generation, term, version, held, routes))

    def reached(self, version: int, *, marks: bool = False) -> None:
        with self.cond:
            self.carry_out(self.machine.reached(version, marks=marks))

    def comes(self, tag: ArrayTag, begun: int, *, rests: bool) -> bool:
        """Wait for the first array of a batch; False: it does not come before version `begun` is made.

        It is not asked whether that is so if this stage `rests`.
        """
        machine = self.machine
        place = machine.place_of(tag)

        def found() -> bool | None:
            if place in machine.arrived:
                return True
            return False if not rests and machine.rests_at(begun) else None

        return self.wait(found, place.sender)

    def take(self, tag: ArrayTag, rows: int | None = None) -> Sequence[Array]:
        """Wait for an array of another stage, of so many examples, and its mask if it has one.

        Raises:
            TermOverError: the term is over.
            PeerLostError: the leader, or in the leader another stage, is gone for good.
            CallsDifferError: the neighbour reads other batches.
        """
        machine = self.machine
        place = machine.place_of(tag)
        if tag.back:  # of what was refused no gradient comes, and backward overwrites what has left
            self._hear(("forward", machine.tasks.index(place.sender)), tag._replace(back=False))
        found = self.wait(lambda: machine.take(place), place.sender)
        if rows is not None and len(found[0]) != rows:
            raise CallsDifferError(
                f"{place.sender} has {len(found[0])} examples in microbatch {tag.microbatch} of batch "
                f"{tag.batch}, {machine.tasks[machine.stage]} has {rows}: every task of a pipeline reads the "
                "same batches"
            )
        self._widest_bytes = max(self._widest_bytes, sum(each.nbytes for each in found))
        return found

    def send(
        self, tag: ArrayTag, arrays: Sequence[Array | None], version: int | None, *, marks: bool
    ) -> None:
        """Send an array, and its mask if it has one, to another stage; see `_tell`.

        The arrays must not change before it has answered.
        """
        term, given = self.machine.term, [np.ascontiguousarray(each) for each in arrays if each is not None]
        shapes = tuple(array.shape for array in given)
        message = StageTensor(term=term, tag=tag, shapes=shapes, version=version, marks=marks)
        _, to = self.machine.routes[tag.edge].ends(tag.microbatch, back=tag.back)
        blocks = [array.reshape(-1) for array in given]
        self._tell(("back" if tag.back else "forward", to), message, tag, blocks)

    def vote(self, message: StageVote) -> tuple[StageVerdict, Sums | None]:
        """Tell the leader that a gradient is complete, and wait for its verdict; raise as `take`."""
        self._ask(("vote", 0), message)
        self._hear_all()
        said = self._answer(("vote", 0), StageVerdict).message
        assert isinstance(said, StageVerdict)
        if (said.term, said.batch) != (message.term, message.batch):
            raise PeerRefusedError(f"the leader has decided batch {said.batch}, not {message.batch}")
        return said, None

    def tell(self, message: StageVote) -> None:
        """Tell the leader that a version is made; raise as `take`."""
        self._tell(("made", 0), message, message.batch)

    def enter(self, generation: int, plan_hash: str) -> Frame:
        """Ask the leader for variables; return its `PipelineTerm` or `Over`."""
        with self.cond:
            self._entering = peer = self._new_peer(0)
            if self.failure is not None:
                peer.abort(self.failure)
        peer.send(EnterPipeline(generation=generation, plan_hash=plan_hash))
        return self._received(peer, PipelineTerm, Over)

    def await_conclusion(self) -> Frame:
        """Wait until the last step is saved; return a `Conclude` with all values, or raise as `take`."""
        machine = self.machine
        self._ask(("vote", 0), _pull(machine, concluded=True))
        self._hear_all()
        return self._answer(("vote", 0), Conclude)

    def leaves(self, within_s: float) -> None:
        """End every wait from now on within a time: this task has been told to end."""
        self.deadline_s = SYSTEM.now() + within_s

    def linger(self) -> None:
        """Serve until the leader needs this stage no more, or is gone."""
        self._say(0, _pull(self.machine, concluded=True), LOOK_S, self.deadline_s or SYSTEM.now())

    def _say(self, stage: int, message: AnyMessage, patience_s: float, until_s: float) -> None:
        """Send another stage a message on a new connection; one that cannot be reached is passed over."""
        peer = self._new_peer(stage, patience_s)
        with contextlib.suppress(DtrainError):
            peer.ask(message, until_s)
        peer.close()

    # Questions, and the waits for them

    def _ask(
        self, place: tuple[str, int], message: AnyMessage, blocks: Blocks = (), *, follows: bool = False
    ) -> None:
        """Ask another stage something, for one purpose, each of which has a connection for one thread."""
        with self.cond:
            if self.failure is not None or self.machine.is_over:
                self.check()
            if place not in self._peers:
                self._peers[place] = self._new_peer(place[1])
        with self._within_term():
            self._peers[place].send(message, blocks, deadline=self.deadline_s, follows=follows)

    def _tell(
        self, place: tuple[str, int], message: AnyMessage, what: ArrayTag | int, blocks: Blocks = ()
    ) -> None:
        """Tell another stage something; what waits there for an acknowledgement is no more than credits."""
        told = self._unanswered.setdefault(place, deque())
        if len(told) >= min(self.machine.depth, UNHEARD_MAX):
            self._hear(place, told[0])
        self._ask(place, message, blocks, follows=bool(told))
        told.append(what)

    def _hear(self, place: tuple[str, int], what: ArrayTag | int, until_s: float | None = None) -> None:
        """Wait until this is acknowledged, if it was told there; a refusal is a `PeerRefusedError`."""
        told = self._unanswered.get(place, deque())
        while what in told:
            self._answer(place, Acknowledged, until_s)
            told.popleft()

    def _hear_all(self, until_s: float | None = None) -> None:
        for place, told in self._unanswered.items():
            while told:
                self._hear(place, told[-1], until_s)

    def _answer(self, place: tuple[str, int], kind: type[AnyMessage], until_s: float | None = None) -> Frame:
        """Return the answer to what was asked there; raise as `take`."""
        with self._within_term():
            return self._received(self._peers[place], kind, until_s=until_s)

    def _received(self, peer: Peer, *kinds: type[AnyMessage], until_s: float | None = None) -> Frame:
        self._reporter.waiting(peer.name)
        frame = peer.receive(deadline=until_s or self.deadline_s)
        self._reporter.waiting(None)
        if isinstance(frame.message, kinds):
            return frame
        if isinstance(frame.message, VoidTerm | NotReady):
            with self.cond:
                self.machine.void(self.machine.term)
                self.check()
        said = frame.message
        raise PeerRefusedError(said.reason if isinstance(said, Refusal) else f"found {type(said).__name__}")

    def _new_peer(self, stage: int, patience_s: float | None = None) -> Peer:
        task, patience_s = self.machine.tasks[stage], patience_s or self.patience_s
        return Peer(str(task), partial(self._connect, task), patience_s=patience_s)

    @contextlib.contextmanager
    def _within_term(self) -> Iterator[None]:
        """Raise a `TermOverError` for the loss of a connection where the term is over."""
        try:
            yield
        except PeerError:
            with self.cond:
                self.check()
            raise

    def wait(self, found: Callable[[], T | None], whom: TaskId) -> T:
        """Wait until something is there; see `take`."""
        with self.cond:
            if (result := found()) is not None:
                return result
        begun_s = heard_s = SYSTEM.now()
        self._reporter.waiting(whom)
        try:
            while True:
                with self.cond:
                    while (result := found()) is None:
                        self.check()
                        self.look_for_lost(SYSTEM.now() - begun_s)
                        self.look_for_end()
                        if not self.cond.wait(LOOK_S):
                            break
                    else:
                        return result
                # What was lost with a connection is said again, for another stage may wait for it.
                try:
                    self._hear_all(SYSTEM.now() + LOOK_S)
                    heard_s = SYSTEM.now()
                    self._reporter.waiting(whom)
                except (WaitTimeoutError, PeerLostError):
                    if SYSTEM.now() - heard_s >= self.patience_s + 2 * LOOK_S:
                        raise
        finally:
            self._reporter.waiting(None)

    def look_for_lost(self, waited_s: float) -> None:
        """Raise a `PeerLostError` if another stage is gone for good; the leader alone knows it."""

    def check(self) -> None:
        """Raise the reason for which nothing is to be waited for any more, if there is one."""
        if self.failure is not None:
            raise PeerLostError(self.failure)
        if self.machine.is_over:
            raise TermOverError(f"term {self.machine.term} is over")
        if self.machine.stopped:
            raise StageStoppedError(f"training has ended at step {self.machine.version}")


def _pull(machine: StageMachine, *, concluded: bool = False) -> Pull:
    asked = {"generation": machine.generation, "at_least": machine.version, "term": machine.term}
    return Pull(**asked, wait_s=0.0, concluded=concluded)


class LeadingDriver(StageDriver):
    """The stage of the leader."""

    machine: LeadingStage

    def look_for_lost(self, waited_s: float) -> None:
        gone = [task for task in self.machine.tasks[1:] if self._away(task)]
        if gone and waited_s >= self.patience_s:
            raise PeerLostError(
                f"{', '.join(map(str, gone))} did not come back within {self.patience_s:g} s (wait.server_s)"
            )

    def gather(
        self, generation: int, plan_hash: str, incarnation: int, within_s: float, *, voids: bool
    ) -> int:
        """Wait until all other stages have asked to enter; return the number of the next term, which is later
        than every one before, also of an earlier process of this task.

        Args:
            voids: whether stages may hold an earlier one, which is over.

        Raises:
            PeerLostError: one does not come within the time.
        """
        machine = self.machine
        term = max(machine.term, incarnation)
        with self.cond:
            self.carry_out(machine.expect(generation, plan_hash))
            self.carry_out(machine.void_others())
        begun_s = SYSTEM.now()
        while missing := machine.missing:
            if self.failure is not None:
                raise PeerLostError(self.failure)
            names = ", ".join(str(machine.tasks[stage]) for stage in missing)
            if SYSTEM.now() - begun_s >= within_s:
                raise PeerLostError(f"{names} did not enter the pipeline within {within_s:g} s")
            self._reporter.waiting(names)
            for stage in missing if voids else ():
                if stage in machine.missing:
                    self._say(stage, VoidTerm(term=term), VOID_S, SYSTEM.now() + VOID_S)
            with self.cond:
                self.cond.wait_for(lambda: not machine.missing, LOOK_S)
        self._reporter.waiting(None)
        return term + 1

    def measured_links(self) -> dict[int, StageLink]:
        """Return how fast the connection with each other stage is, by numbers that it acknowledges.

        There are more of them until they take `PROBE_S`, so that what the system buffers does not count.

        Raises:
            PeerLostError: a stage does not answer for the patience.
        """
        links = {}
        for stage in self.machine.others:
            self._peers["probe", stage] = peer = self._new_peer(stage)  # so that an abort ends the wait
            round_trip_s = min(self._probed(peer, 0) for _ in range(PROBES))
            count, took_s = LEAST_PROBE, 0.0
            while took_s < PROBE_S and count < MOST_PROBE:
                count *= 4
                took_s = self._probed(peer, count) - round_trip_s
            links[stage] = StageLink(4 * count / max(took_s, SHORTEST_S), round_trip_s / 2)
            self._peers.pop(("probe", stage)).close()
        return links

    def _probed(self, peer: Peer, count: int) -> float:
        """Return the seconds until a stage has acknowledged so many float32 numbers."""
        numbers = np.zeros(count, np.float32)
        begun_s = SYSTEM.now()
        peer.send(LinkProbe(), [numbers])
        self._received(peer, Acknowledged)
        return SYSTEM.now() - begun_s

    def give(self, term: int, shares: Sequence[tuple[PipelineTerm, Blocks]]) -> None:
        with self.cond:
            self.carry_out(self.machine.give(term, shares))

    def vote(self, message: StageVote) -> tuple[StageVerdict, Sums | None]:
        machine = self.machine
        verdict, sums, answers = self.wait(lambda: machine.decide(message), machine.tasks[-1])
        with self.cond:
            self.carry_out(answers)
        return verdict, sums

    def release(self) -> None:
        """Answer what other stages wait for, now and later: nothing is needed of them any more."""
        with self.cond:
            self.machine.void(self.machine.term)
            self.carry_out(self.machine.void_others())

    def order(self, control: Control, values: Sequence[Blocks] = ()) -> None:
        """Have every other stage obey; raise as `take`."""
        self._hear_all()
        for stage in self.machine.others:
            self._ask(("order", stage), control, values[stage] if values else ())
        for stage in self.machine.others:
            self._answer(("order", stage), Controlled)

    def values_of(self, stage: int) -> Blocks:
        """Return the variables of another stage at this stage's version, flat; raise as `take`."""
        self._ask(("order", stage), _pull(self.machine))
        return [np.array(block) for block in self._answer(("order", stage), Values).blocks]

    def conclude(self, rows: dict[int, Row], values: Callable[[], Blocks]) -> None:
        """Wait until all stages have made the last step, and end the call of `fit` there; raise as `take`."""
        machine = self.machine
        given = values()
        machine.concluded = machine.generation
        self.wait(lambda: machine.all_ended or None, machine.tasks[-1])
        with self.cond:
            self.carry_out(machine.conclude(rows, given))

    # In the thread that saves

    def snapshot(self, version: int, others: Sequence[int]) -> list[SnapshotReply]:
        """Have other stages remember what they hold at a version; return their answers."""
        for stage in others:
            self._ask(("save", stage), Snapshot(at_least=version, wait_s=0.0, term=self.machine.term))
        answers = [self._answer(("save", stage), SnapshotReply).message for stage in others]
        return [each for each in answers if isinstance(each, SnapshotReply)]

    def snapshot_rows(self, stage: int, question: SnapshotRows) -> Array:
        self._ask(("save", stage), question)
        return np.array(self._answer(("save", stage), Rows).blocks[0])
