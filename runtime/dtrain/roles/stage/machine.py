"""The machines of a stage and of the stage that leads: (message) -> actions. No socket, no thread, no clock.

Rule *Stage terms* (docs/design/pipelines.md#when-a-stage-dies):

1. A term begins in all stages from one version. A stage that asks to enter while its term goes on has lost
   its variables: then the term is over.
2. Nothing that says another term counts. What comes of a later term waits for it.
3. An array counts once: what comes again is acknowledged and dropped.
4. A batch is applied by every stage or by none: the leader decides when all have voted, and remembers its
   last verdict for a stage that has not heard it. In an asynchronous pipeline each stage applies it at once;
   then votes only tell the leader, which is the last one to make a version.
5. An asynchronous pipeline is at rest at a version about which the leader asks, of those that it has begun
   to compute: no stage waits then for more before it passes back what it has.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np

from dtrain.cluster import TaskId
from dtrain.control.interface import Caller, Send
from dtrain.errors import DtrainError
from dtrain.learning.core.arrays import fits
from dtrain.messages import (
    Acknowledged,
    AnyMessage,
    Conclude,
    Control,
    Controlled,
    EnterPipeline,
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
from dtrain.state.stage_layout import ArrayRoute, ArrayTag
from dtrain.types import Array, Blocks, Shape


class Place(NamedTuple):
    """The place of an array in a term; see `StageTensor`."""

    term: int
    tag: ArrayTag
    sender: TaskId


@dataclass(frozen=True)
class HeldStage:
    """The uses that others make of a stage's variables, in whose midst nothing else changes them."""

    values: Callable[[], Blocks]
    mark: Callable[[], SnapshotReply]
    rows: Callable[[SnapshotRows], Array]
    obey: Callable[[Control, Blocks], None]


class Question(NamedTuple):
    """A message that is answered when this stage has reached a version."""

    caller: Caller
    message: Pull | Snapshot | Control
    blocks: Blocks

    @property
    def wants_rest(self) -> bool:
        return not isinstance(self.message, Snapshot)

    @property
    def version(self) -> int:
        return self.message.version if isinstance(self.message, Control) else self.message.at_least


@dataclass
class StageMachine:
    """One stage, as others see it.

    Attributes:
        stage: the place of this task in `tasks`.
        tasks: all that train, the leader first.
        voided: no term up to this one counts any more.
        held: None before the first term.
        stopped: whether the leader has ended training at this version.
        leaves: whether the leader's task is to end, and has let the pipeline come to rest.
        arrived: what neighbours have sent, and is not taken yet.
        routes: the ways of arrays forward, by their edge.
        noted: by batch, the version and the mark that came with its first array.
        rested: the newest version at which the leader has wanted rest.
        marked: what is remembered for a checkpoint, and the version.
        shapes: of one example of each array that travels, by its edge, as far as they are known. A length of
            None may vary.
        depth: how many microbatches another stage may be ahead.
    """

    stage: int
    tasks: Sequence[TaskId]
    generation: int = 0
    term: int = 0
    voided: int = 0
    version: int = 0
    held: HeldStage | None = None
    stopped: bool = False
    leaves: bool = False
    arrived: dict[Place, Sequence[Array]] = field(default_factory=dict)
    noted: dict[int, tuple[int, bool]] = field(default_factory=dict)
    routes: Sequence[ArrayRoute] = ()
    rested: int = 0
    marked: tuple[int, SnapshotReply] | None = None
    shapes: Mapping[int, Shape] = field(default_factory=dict)
    depth: int = 1
    _taken: dict[tuple[TaskId, bool], deque[Place]] = field(default_factory=dict)
    _questions: list[Question] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.term <= self.voided

    def begin(
        self, generation: int, term: int, version: int, held: HeldStage, routes: Sequence[ArrayRoute]
    ) -> list[Send]:
        """Give up what waits for an earlier one, and answer what has waited for this one."""
        self.routes = routes
        self.generation = generation
        self.term = term
        self.version = version
        self.held = held
        self.stopped = self.leaves = False
        self.rested = version
        self.marked = None
        self.arrived = {place: blocks for place, blocks in self.arrived.items() if place.term >= term}
        self._taken.clear()
        return self._answers()

    def reached(self, version: int, *, marks: bool = False) -> list[Send]:
        """Go on to a version, and remember it if it `marks` a checkpoint."""
        self.version = version
        if marks and self.held is not None:
            self.marked = version, self.held.mark()
        return self._answers()

    def rests_at(self, version: int) -> bool:
        """Return whether nothing more comes until this version is made."""
        asked = [each for each in self._questions if each.message.term == self.term]
        return max([self.rested, *(each.version for each in asked if each.wants_rest)]) >= version

    def place_of(self, tag: ArrayTag) -> Place:
        """Return the place in this term of an array that comes to this stage."""
        sender, _ = self.routes[tag.edge].ends(tag.microbatch, back=tag.back)
        return Place(self.term, tag, self.tasks[sender])

    def take(self, place: Place) -> Sequence[Array] | None:
        """Return what has come, its array and its mask; None: it has not."""
        found = self.arrived.pop(place, None)
        if found is not None:
            # Of each route so many may come again, after those that their sender sent behind them.
            newest = deque[Place](maxlen=self.depth * len(self.routes) + self.depth)
            self._taken.setdefault((place.sender, place.tag.back), newest).append(place)
        return found

    def receive(self, caller: Caller, sender: TaskId, message: AnyMessage, blocks: Blocks) -> list[Send]:
        match message:
            case StageTensor():
                return [Send(caller, self._arrives(sender, message, blocks))]
            case VoidTerm():
                self.void(message.term)
                return [Send(caller, Acknowledged()), *self._answers()]
            case LinkProbe():
                return [Send(caller, Acknowledged())]
            case Pull() | Snapshot() | Control():
                copies = [np.array(block) for block in blocks] if isinstance(message, Control) else ()
                self._questions.append(Question(caller, message, copies))
                return self._answers()
            case SnapshotRows() if self.held is not None:
                try:
                    return [Send(caller, Rows(), [self.held.rows(message)])]
                except DtrainError as error:
                    return [Send(caller, Refusal(reason=str(error)))]
        reason = f"{self.tasks[self.stage]} takes no {type(message).__name__} message now"
        return [Send(caller, Refusal(reason=reason))]

    def void(self, term: int) -> None:
        self.voided = max(self.voided, term)

    def disconnected(self, caller: Caller) -> None:
        self._questions = [each for each in self._questions if each.caller != caller]

    def _arrives(self, sender: TaskId, message: StageTensor, blocks: Blocks) -> Acknowledged | Refusal:
        place, tag = Place(message.term, message.tag, sender), message.tag
        sizes = [prod(shape) for shape in message.shapes]
        found = [block.size for block in blocks]
        if place.term == self.term and sender != self._sender_of(tag):
            return Refusal(reason=f"{sender} is not the stage that sends this to {self.tasks[self.stage]}")
        below_0 = any(length < 0 for shape in message.shapes for length in shape)
        if below_0 or sizes != found or len(sizes) not in (1, 2):
            return Refusal(reason=f"arrays of {sizes} elements were announced, and have {found}")
        if reason := self._misfit(place, message, blocks):
            return Refusal(reason=f"{sender} sends {reason}")
        if place.term >= self.term and place not in self._taken.get((sender, tag.back), ()):
            known = zip(blocks, message.shapes, strict=True)
            self.arrived[place] = [np.array(block).reshape(shape) for block, shape in known]
            if message.version is not None and not tag.back and not tag.microbatch:
                self.noted[tag.batch] = message.version, message.marks
        return Acknowledged()

    def _sender_of(self, tag: ArrayTag) -> TaskId | None:
        """Return who sends it by the route of its edge; None: no route with that edge ends here."""
        if not 0 <= tag.edge < len(self.routes) or tag.microbatch < 0:
            return None
        sender, receiver = self.routes[tag.edge].ends(tag.microbatch, back=tag.back)
        return self.tasks[sender] if receiver == self.stage else None

    def _misfit(self, place: Place, message: StageTensor, blocks: Blocks) -> str | None:
        """Return what is wrong with an array of a neighbour's; None: nothing."""
        tag = place.tag
        expected, shape = self.shapes.get(tag.edge), message.shapes[0][1:]
        if expected is not None and not fits(shape, expected):
            return f"examples of shape {shape}, expected {expected}"
        floats = [block.dtype for block in blocks[:1] if tag.back or block.dtype.kind == "f"]
        if wrong := [each for each in floats if each != np.float32] or [
            block.dtype for block in blocks[1:] if block.dtype != np.bool_
        ]:
            return f"numbers of {wrong[0]}, expected float32, and bool in a mask"
        alike = (each for each in self.arrived if (each.tag.back, each.tag.edge) == (tag.back, tag.edge))
        waiting = [each for each in alike if each != place]
        if len(waiting) >= 2 * self.depth:  # of this term and of the next one
            return f"more than the {len(waiting)} arrays that wait here, of at most {self.depth} in a term"
        return None

    def _answers(self) -> list[Send]:
        """Answer what can be answered now."""
        waiting, self._questions = self._questions, []
        answers: list[Send] = []
        for each in waiting:
            said = each.message
            if said.term < self.term or said.term <= self.voided:
                answers.append(Send(each.caller, NotReady(reason=f"term {said.term} is over")))
            elif said.term > self.term or self.held is None or self.version < each.version:
                self._questions.append(each)
            else:
                answers.append(self._answer(each, self.held))
        return answers

    def _answer(self, question: Question, held: HeldStage) -> Send:
        message = question.message
        if question.wants_rest:
            self.rested = question.version
        if isinstance(message, Snapshot):
            marked = self.marked
            found = marked[1] if marked and marked[0] == message.at_least else held.mark()
            return Send(question.caller, found)
        if isinstance(message, Pull):
            values = Values(generation=self.generation, version=self.version, max_steps=0, term=self.term)
            return Send(question.caller, values, held.values())
        try:
            if message.optimizer:
                held.obey(message, question.blocks)
                self.stopped = self.stopped or message.stop
            else:
                self.leaves = self.leaves or message.stop
        except DtrainError as error:
            return Send(question.caller, Refusal(reason=str(error)))
        return Send(question.caller, Controlled())


@dataclass
class LeadingStage(StageMachine):
    """The stage that leads: it also begins terms, decides batches, and ends the call of `fit`.

    Attributes:
        waiting: who waits for an answer to what, by stage: to enter, or at the end of the call of `fit`.
        lost: the stages that have lost their variables in this term.
        votes: on batches that are under way, by batch and stage.
        passed: the stages that have come after the last step was saved, and have nothing to do.
        concluded: the last call of `fit` of which the last step is saved.
    """

    plan_hash: str = ""
    waiting: dict[int, tuple[Caller, EnterPipeline | Pull]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    votes: dict[tuple[int, int], tuple[Caller, StageVote]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    concluded: int = 0
    _verdict: StageVerdict | None = None

    @property
    def is_over(self) -> bool:
        return bool(self.lost) or super().is_over

    @property
    def others(self) -> range:
        return range(1, len(self.tasks))

    def receive(self, caller: Caller, sender: TaskId, message: AnyMessage, blocks: Blocks) -> list[Send]:
        stage = self.tasks.index(sender) if sender in self.tasks else -1
        match message:
            case EnterPipeline() if stage > 0:
                return self._enter(caller, stage, message)
            case StageVote() | Pull(concluded=True) if stage > 0:
                if message.term != self.term or self.is_over:
                    return [Send(caller, VoidTerm(term=message.term))]
                if isinstance(message, StageVote):
                    return self._vote(caller, stage, message)
                self.waiting[stage] = caller, message
                return []
        return super().receive(caller, sender, message, blocks)

    def expect(self, generation: int, plan_hash: str) -> list[Send]:
        """Take what stages ask from now on for this call of `fit`."""
        early = [each for each in self.waiting.items() if each[1][1].generation > self.generation]
        self.generation = generation
        self.plan_hash = plan_hash
        return [send for stage, (caller, said) in early for send in self._enter(caller, stage, said)]

    def _enter(self, caller: Caller, stage: int, message: EnterPipeline | Pull) -> list[Send]:
        self.waiting[stage] = caller, message
        if message.generation > self.generation:
            return []
        answer: AnyMessage
        if message.generation < self.generation or self.concluded == self.generation:
            self.passed.add(stage)
            answer = Over(generation=self.generation)
        elif isinstance(message, EnterPipeline) and message.plan_hash != self.plan_hash:
            answer = Refusal(
                reason=f"{self.tasks[stage]} has another model than {self.tasks[0]}: every task of a "
                "pipeline runs the same program"
            )
        else:
            self.lost.add(stage)
            return []
        del self.waiting[stage]
        return [Send(caller, answer)]

    @property
    def missing(self) -> list[int]:
        """The other stages that have not asked to enter."""
        entered = self.waiting_with(EnterPipeline)
        return [stage for stage in self.others if stage not in entered]

    def waiting_with(self, kind: type[EnterPipeline | Pull]) -> dict[int, Caller]:
        """Return who waits in this call of `fit` for an answer to such a message, by stage."""
        return {
            stage: caller
            for stage, (caller, said) in self.waiting.items()
            if isinstance(said, kind) and said.generation == self.generation
        }

    def give(self, term: int, shares: Sequence[tuple[PipelineTerm, Blocks]]) -> list[Send]:
        """Begin a term in the other stages, all of which have entered; `shares` are by stage."""
        entered = sorted(self.waiting_with(EnterPipeline).items())
        answers = [Send(caller, *shares[stage]) for stage, caller in entered]
        self.term = term
        self.waiting.clear()
        self.lost.clear()
        self.votes.clear()
        self.passed.clear()
        self._verdict = None
        return answers

    def _vote(self, caller: Caller, stage: int, message: StageVote) -> list[Send]:
        if self._verdict is not None and message.batch == self._verdict.batch:
            return [Send(caller, self._verdict)]
        self.votes[message.batch, stage] = caller, message
        return [Send(caller, Acknowledged())] if message.made else []

    def decide(self, own: StageVote) -> tuple[StageVerdict, Sums | None, list[Send]] | None:
        """Return a verdict, the sums, and the answers to the others; None: not all have voted."""
        if any((own.batch, stage) not in self.votes for stage in self.others):
            return None
        votes = [self.votes.pop((own.batch, stage)) for stage in self.others]
        every = [own, *(vote for _, vote in votes)]
        applied, loss = True, 0.0
        each: StageVote
        for each in every:
            applied = applied and each.finite
            loss += each.loss
        self._verdict = StageVerdict(term=self.term, batch=own.batch, applied=applied, loss=loss)
        last = next((vote for vote in every if vote.sums is not None), own)
        sums = None if last.sums is None else with_loss(last.sums, loss - last.loss)
        return self._verdict, sums, [Send(caller, self._verdict) for caller, vote in votes if not vote.made]

    def verdict_on(self, batch: int) -> StageVerdict | None:
        """Return what was decided last, if it was this batch."""
        return self._verdict if self._verdict is not None and self._verdict.batch == batch else None

    def void_others(self) -> list[Send]:
        """Answer what other stages wait for in a term that is over."""
        ended = self.waiting_with(Pull)
        callers = [caller for caller, vote in self.votes.values() if not vote.made] + [*ended.values()]
        self.votes.clear()
        self.waiting = {stage: each for stage, each in self.waiting.items() if stage not in ended}
        return [Send(caller, VoidTerm(term=self.term)) for caller in callers]

    @property
    def all_ended(self) -> bool:
        return len(self.waiting_with(Pull).keys() | self.passed) == len(self.others)

    def conclude(self, rows: dict[int, Row], values: Blocks) -> list[Send]:
        """End the call of `fit` in the stages that have asked; `values` are those of every variable."""
        message = Conclude(generation=self.generation, rows=rows)
        return [Send(caller, message, values) for caller in self.waiting_with(Pull).values()]

    def disconnected(self, caller: Caller) -> None:
        super().disconnected(caller)
        self.waiting = {stage: each for stage, each in self.waiting.items() if each[0] != caller}
        self.votes = {place: each for place, each in self.votes.items() if each[0] != caller or each[1].made}


def with_loss(sums: Sums, more: float) -> Sums:
    """Return the sums of a step with so much more loss for each example."""
    totals = np.frombuffer(sums.totals, "<f8").copy()
    if "loss" in sums.names and len(totals) > len(sums.names):
        totals[1 + sums.names.index("loss")] += more * totals[0]
    return Sums(names=sums.names, totals=totals.tobytes())
