"""The messages between tasks: plain data, without the transport that carries it.

A message may be accompanied by *blocks*: one-dimensional contiguous arrays, one for each group of the
receiving server's layout (see `parameters.placement`), which the transport carries beside it without looking
inside. Which messages have blocks, and which blocks, is said at each class; where `training.compression` asks
for it, float32 travels in them as `parameters.compression` says. Messages are msgspec structs, so nothing
that arrives can be anything but one of them.

The life of a run, in messages:

    every task -> every server   Opening / Challenge, Proof / Proven, then Proof with Hello on opening a
                                 connection; the server refuses or lets in
    leader     -> every server   Initialise (plan, optimizer, values), answered by Initialised; again, in a
                                 new *term*, when a server died
    new worker -> any server     Join / JoinPlace, where it is to become a task of a run that trains
    leader     -> every server   Load / Loaded: rows of tables, to be drawn or as they come, before the term
                                 begins
    replica    -> every server   Pull until initialised; then Push / Reply, one pair a step and server
    any task   -> every server   LookupRows / Rows: the rows of a table that a batch needs
    ps:i       -> ps:0           Complete;  ps:0 -> ps:i  Release, Commit
    leader     -> ps:0           Record / Recorded: the numbers of epochs that have ended
    every task -> ps:0           Heartbeat / HeartbeatReply each second, beside the tensors
    leader     -> every server   Mark / Marked (async), Snapshot / SnapshotReply, SnapshotRows / Rows, for a
                                 checkpoint
    leader     -> every server   Farewell / Farewell at the end
    replica    -> leader         Enter / Entered, without servers
    replica    -> every member   NotifySocket / NotifySocket, of a replica that joins later
    leader     -> member         Told; member -> leader  MemberReport: the rounds of replicas without servers
    stage      -> leader         EnterPipeline / PipelineTerm, in a pipeline; then StageVote / StageVerdict
    stage      -> its neighbours StageTensor / Acknowledged;  leader -> stage  VoidTerm / Acknowledged
    leader     -> stage          LinkProbe / Acknowledged, before it cuts a model
    leader     -> every server   Hold / Holding, then Control / Controlled: other numbers or values, an end
    leader     -> ps:0           Conclude / Conclude: the last step is saved, so no server can be needed again
                                 for this generation

A program with a coordinator has messages of its own: see `messages.closures`.

Two numbers say which variables are meant. The *generation* counts the calls of `fit`. The *term* counts,
within the run, how often all servers were given their variables: when one of them dies, the leader begins a
new term from the newest checkpoint on every server, and whatever was said in an earlier term is void.
"""

from dtrain.messages.closures import (
    Attended,
    Closure,
    Failure,
    Operate,
    Operated,
    Operation,
    Share,
    TakeClosure,
)
from dtrain.messages.membership import Conclude, Farewell, Heartbeat, HeartbeatReply, Record, Recorded
from dtrain.messages.message import Message, Refusal, RefusalKind
from dtrain.messages.opening import (
    PROTOCOL_VERSION,
    Challenge,
    Hello,
    Initialise,
    Initialised,
    Join,
    JoinPlace,
    Opening,
    Proof,
    Proven,
)
from dtrain.messages.replicas import Enter, Entered, NotifySocket, Over
from dtrain.messages.rounds import CallMade, LeaderRecord, MemberReport, PartCall, Told
from dtrain.messages.servers import (
    AskLearned,
    Commit,
    Complete,
    Control,
    Controlled,
    Hold,
    Holding,
    Learned,
    Mark,
    Marked,
    Release,
    Snapshot,
    SnapshotReply,
    SnapshotRows,
    Subscribe,
)
from dtrain.messages.stages import (
    Acknowledged,
    EnterPipeline,
    LinkProbe,
    PipelineTerm,
    StageTensor,
    StageVerdict,
    StageVote,
    VoidTerm,
)
from dtrain.messages.steps import Load, Loaded, LookupRows, NotReady, Pull, Push, Reply, Rows, Values, Verdict
from dtrain.state.fit_state import FitState, Lineage, Row, Sums

AnyMessage = (
    Hello
    | Initialise
    | Initialised
    | Load
    | Loaded
    | LookupRows
    | Rows
    | Pull
    | NotReady
    | Values
    | Push
    | Reply
    | Complete
    | Subscribe
    | Commit
    | Release
    | Heartbeat
    | HeartbeatReply
    | Mark
    | Marked
    | Snapshot
    | SnapshotReply
    | SnapshotRows
    | Hold
    | Holding
    | Control
    | Controlled
    | Record
    | Recorded
    | Conclude
    | Farewell
    | Join
    | JoinPlace
    | Learned
    | AskLearned
    | Share
    | Operate
    | Operated
    | Attended
    | TakeClosure
    | Closure
    | Enter
    | Entered
    | Over
    | NotifySocket
    | MemberReport
    | Told
    | CallMade
    | LeaderRecord
    | PartCall
    | EnterPipeline
    | PipelineTerm
    | VoidTerm
    | LinkProbe
    | StageTensor
    | StageVote
    | StageVerdict
    | Acknowledged
    | Refusal
)

__all__ = [
    "PROTOCOL_VERSION",
    "Acknowledged",
    "AnyMessage",
    "AskLearned",
    "Attended",
    "CallMade",
    "Challenge",
    "Closure",
    "Commit",
    "Complete",
    "Conclude",
    "Control",
    "Controlled",
    "Enter",
    "EnterPipeline",
    "Entered",
    "Failure",
    "Farewell",
    "FitState",
    "Heartbeat",
    "HeartbeatReply",
    "Hello",
    "Hold",
    "Holding",
    "Initialise",
    "Initialised",
    "Join",
    "JoinPlace",
    "LeaderRecord",
    "Learned",
    "Lineage",
    "LinkProbe",
    "Load",
    "Loaded",
    "LookupRows",
    "Mark",
    "Marked",
    "MemberReport",
    "Message",
    "NotReady",
    "NotifySocket",
    "Opening",
    "Operate",
    "Operated",
    "Operation",
    "Over",
    "PartCall",
    "PipelineTerm",
    "Proof",
    "Proven",
    "Pull",
    "Push",
    "Record",
    "Recorded",
    "Refusal",
    "RefusalKind",
    "Release",
    "Reply",
    "Row",
    "Rows",
    "Share",
    "Snapshot",
    "SnapshotReply",
    "SnapshotRows",
    "StageTensor",
    "StageVerdict",
    "StageVote",
    "Subscribe",
    "Sums",
    "TakeClosure",
    "Told",
    "Values",
    "Verdict",
    "VoidTerm",
]
