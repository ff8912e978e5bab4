"""Messages between the stages of a pipeline (docs/design/pipelines.md).

Everything says its term, and nothing of another term counts. A batch is named by the number of its part
(`protocol.part_dealer`), which every stage deals itself in the same order.
"""

from dtrain.messages.message import Message
from dtrain.state.fit_state import FitState, Sums
from dtrain.state.stage_layout import ArrayTag


class EnterPipeline(Message, frozen=True, gc=False, kw_only=True):
    """Stage to the leader: it holds no variables that count, and would like to have those of its stage.

    The answer is `PipelineTerm` when all stages have asked, `Over`, or a `Refusal` of another model.

    Attributes:
        plan_hash: of the variables of the whole model, however it is cut.
    """

    generation: int
    plan_hash: str


class PipelineTerm(Message, frozen=True, gc=False, kw_only=True):
    """Leader to stage: a term begins. Blocks: each variable of the stage, flat; then each slot of each one
    that is trained, in the order of `slots`.

    Attributes:
        begins: the layers with which the stages begin.
    """

    state: FitState
    term: int
    slots: tuple[str, ...] = ()
    begins: tuple[str, ...] = ()


class VoidTerm(Message, frozen=True, gc=False, kw_only=True):
    """Leader to stage: no term up to this one counts any more; also the answer to a vote, or to who waits for
    the end of the call of `fit`, in such a term.
    """

    term: int


class LinkProbe(Message, frozen=True, gc=False, kw_only=True):
    """Leader to stage, before it cuts the model: a block of zeros, with which it measures the connection.

    The answer is `Acknowledged`.
    """


class StageTensor(Message, frozen=True, gc=False, kw_only=True):
    """Stage to another one, what a microbatch leaves there; or the way back, the gradient by it.

    Blocks: the array, flat; then its mask, if it has one.

    Attributes:
        shapes: of the array, and of its mask.
        version: the version that stage 0 has used, if the pipeline is asynchronous and this goes forward.
        marks: forward: a stage remembers for a checkpoint what it has after this batch.
    """

    term: int
    tag: ArrayTag
    shapes: tuple[tuple[int, ...], ...]
    version: int | None = None
    marks: bool = False


class StageVote(Message, frozen=True, gc=False, kw_only=True):
    """Stage to the leader: its gradient of a batch is complete. The answer is `StageVerdict` or `VoidTerm`.

    Attributes:
        finite: whether the gradient is free of NaN and infinity.
        loss: the share of this stage in the loss.
        sums: of the last stage.
        made: an asynchronous pipeline: the stage has changed its variables, and is answered at once.
    """

    term: int
    batch: int
    finite: bool
    loss: float
    sums: Sums | None = None
    made: bool = False


class StageVerdict(Message, frozen=True, gc=False, kw_only=True):
    """Leader to stage: every stage applies its gradient, or none does."""

    term: int
    batch: int
    applied: bool
    loss: float


class Acknowledged(Message, frozen=True, gc=False, kw_only=True):
    """Stage to stage: it is done."""
