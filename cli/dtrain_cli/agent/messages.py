"""The messages between a launcher and its agent on a host: JSON, one object a line.

The agent's stream begins with the line `MAGIC`; a login shell may print a banner before it, which is skipped.
Both ends are of one version of dtrain, which `HostFacts` tells before anything else is said. Bytes travel as
base64. A path is relative to the run's directory, and only the names that `agent.copies` lists are written.
"""

import ipaddress
from itertools import chain
from typing import Annotated, Any

import msgspec

from dtrain.config import RunSpec
from dtrain.formats.bounded_reading import Count, Moment, Text
from dtrain.messages.membership import TaskStatus
from dtrain.process.start_protocol import Exited, Refused, Started, StartTask
from dtrain.runs.files import FailureRecord, KillRequest
from dtrain.runs.joined import JoinedRecord

MAGIC = b"dtrain-agent 1"
PING_S = 1.0
"""The time between two pings of a launcher."""
_RECORDS: dict[str, type[Any]] = {"spec.json": RunSpec, "status.json": TaskStatus, "kill.json": KillRequest}
_RECORDS |= {"joined.json": JoinedRecord, "failure.json": FailureRecord}
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Ports = Annotated[list[_Port], msgspec.Meta(max_length=100_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]


class BeginRun(msgspec.Struct, frozen=True, tag="begin"):
    """The run that the agent belongs to; `host` is the launcher's name for the agent's host.

    Without a message of the launcher the agent keeps its tasks for `lease_s`. The launcher has `known` bytes
    of each file that grows.
    """

    run: str
    host: str
    program: str | None
    digest: str | None
    cwd: str
    lease_s: _Seconds
    known: dict[str, int] = {}


class CodePart(msgspec.Struct, frozen=True, tag="code_part"):
    """A part of the archive with the code; `Done` answers the last one, when the working directory has it."""

    digest: str
    data: bytes
    last: bool


class HoldPorts(msgspec.Struct, frozen=True, tag="hold"):
    """An order to hold `count` ports from `first` to `last`, inclusive; `first` 0 stands for any.

    Attributes:
        wanted: ports that are to be among them if they are free.
        loose: whether the last one is released at once, for a server that cannot share its port.
    """

    address: str
    count: Annotated[int, msgspec.Meta(ge=0, le=100_000)]
    first: _Port = 0
    last: _Port = 0
    wanted: _Ports = []
    loose: bool = False


class Listen(msgspec.Struct, frozen=True, tag="listen"):
    """An order to accept connections on all held ports while it is `on`, so that other hosts can try them."""

    on: bool


class ReleasePorts(msgspec.Struct, frozen=True, tag="release"):
    """An order to let all ports go, for servers that cannot share them."""


class Try(msgspec.Struct, frozen=True, tag="try"):
    """An order to connect to each of these addresses within `timeout_s`."""

    addresses: list[str]
    timeout_s: _Seconds


class SignalOrder(msgspec.Struct, frozen=True, tag="signal"):
    """An order to signal every process of one attempt of a task."""

    task: str
    attempt: Count
    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class SlowOrder(msgspec.Struct, frozen=True, tag="slow"):
    """An order to slow an attempt of a task down by a factor; None: no more than the spec says."""

    task: str
    attempt: Count
    factor: float | None


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """A sign of life; `heard_s` is the newest moment of the agent's clock that the launcher knows."""

    heard_s: Moment


class HostFacts(msgspec.Struct, frozen=True, tag="welcome"):
    """The agent's host.

    Attributes:
        host: the host's own name.
        wall_s: the time of day there, in seconds since 1970.
        reached_at: the address on which the login came in; None where it did not come by ssh.
        addresses: those of each network interface, with the length of the prefix: ``10.0.0.2/24``.
        no_room: why a run's files cannot be kept there; None: they can.
    """

    version: Text
    python: Text
    executable: Text
    host: Text
    monotonic_s: Moment
    wall_s: Moment
    cores: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    reached_at: Text | None = None
    addresses: dict[Text, list[Text]] = {}
    no_room: Text | None = None

    def __post_init__(self) -> None:
        for entry in chain([self.reached_at or "::"], *self.addresses.values()):
            ipaddress.ip_interface(entry)


class RunReady(msgspec.Struct, frozen=True, tag="ready"):
    """The answer to `BeginRun`: nothing is left of an earlier agent of the run on this host.

    `in_place` says whether the launcher's paths lead to the same program and a working directory here.
    """

    run_dir: Text
    in_place: bool
    newest_step: Count | None = None


class Held(msgspec.Struct, frozen=True, tag="held"):
    """The ports of one `HoldPorts`, or why there are none."""

    ports: _Ports
    problem: Text | None = None

    def lacking(self, count: int) -> str | None:
        found = len(self.ports)
        return self.problem or (None if found == count else f"it holds {found} ports instead of {count}")


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The answer to an order or a question: it is so, unless there is a problem."""

    problem: Text | None = None


class Tried(msgspec.Struct, frozen=True, tag="tried"):
    """The answer to `Try`: why addresses cannot be reached, by address."""

    problems: dict[Text, Text]


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to a ping: the host's monotonic clock."""

    monotonic_s: Moment


class Replaced(msgspec.Struct, frozen=True, tag="replaced"):
    """The whole content of a small file."""

    path: Text
    data: bytes

    def __post_init__(self) -> None:
        self.record()

    def record(self) -> Any:
        """Return the contents, of the type that the file's name says; None for another name.

        Raises:
            ValueError: it holds something else.
            OverflowError: it holds a number of more than 64 bits.
        """
        if (kind := _RECORDS.get(self.path.rpartition("/")[2])) is None:
            return None
        record = msgspec.json.decode(self.data, type=kind)
        msgspec.msgpack.encode(record)
        return msgspec.to_builtins(record)


class Appended(msgspec.Struct, frozen=True, tag="appended"):
    """Bytes at the end of a file that grows."""

    path: Text
    data: bytes


class Signalled(msgspec.Struct, frozen=True, tag="signalled"):
    """A signal that the agent itself has got from its host or engine."""

    number: Annotated[int, msgspec.Meta(ge=1, le=15)]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The end of an agent that cannot continue; the reason is a sentence without its host."""

    reason: Text


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """A question for a checkpoint; None: for the files that tasks have made beside the sent code."""

    step: Count | None = None


class MadePart(msgspec.Struct, frozen=True, tag="made_part"):
    """A part of such a file; the parts of one file follow each other. Launchers send lost checkpoints so."""

    path: str
    data: bytes
    last: bool


class AllMade(msgspec.Struct, frozen=True, tag="all_made"):
    """The end of those files, and why some were not sent; `step` is that of a checkpoint."""

    problems: list[Text]
    step: Count | None = None


class FindFile(msgspec.Struct, frozen=True, tag="look"):
    """A question whether a file is there whose contents have this SHA-256; `Done` answers it."""

    path: str
    digest: str


PortOrder = HoldPorts | Listen | ReleasePorts | Try
TaskOrder = StartTask | SignalOrder | SlowOrder
FileOrder = CodePart | Fetch | MadePart | AllMade
FileNews = Replaced | Appended
Order = BeginRun | FileOrder | PortOrder | TaskOrder | FindFile | Ping
TaskNews = Started | Exited | Refused
Reply = RunReady | Done | Held | Tried | Pong | MadePart | AllMade
Answer = HostFacts | Reply | FileNews | TaskNews | Signalled | Failed

ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
