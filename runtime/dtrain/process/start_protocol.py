"""The messages between the launcher and the processes that start tasks for it: one JSON object a line.

The launcher sends a `StartTask`; the fork server, or the guardian that it forks for a command, answers with
`Started` or `Refused`, and later with `Exited`. Tasks are named with the attempt, so that a late report
about an earlier attempt is recognised.

A launcher may get its fork server from a process that has imported everything already: `dtrain fork-server
SOCKET`, of which DTRAIN_FORK_SERVER names the socket. It connects and sends four descriptors: the end of a
socket pair for orders, its life line, its stderr, and a memory that holds a `WarmStart`. The answer is
`Forked`, or `Differs` where a fork would inherit what the launcher does not have; then the launcher starts
a fork server of its own.
"""

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec

from dtrain.formats.bounded_reading import Count, Text, oversized
from dtrain.process.plain_text import plain_line

LINE_BYTES_MAX = 4 << 20
"""The longest line that a host may send."""
ORDER_BYTES_MAX = 16 << 20
"""The longest line of a launcher, whose orders hold variables and lists of files."""
_SHOWN = 80

Message = TypeVar("Message")
TaskName = Annotated[str, msgspec.Meta(pattern=r"^(chief|worker|ps|evaluator):[0-9]{1,9}\Z")]


class StartTask(msgspec.Struct, frozen=True, tag="start"):
    """An order to fork a task, or to execute one.

    Attributes:
        argv: the program and its arguments, as `sys.argv` of the task; the command, where it is executed.
        environment: variables that are set on top of the launcher's own environment.
        private: those that only the task may see (`process.private_variables`).
        cwd: the working directory.
        log: the file to which the task's stdout and stderr are appended; it exists.
        needs_grpc: it serves, or its servers may not be on this host. A task that finds out otherwise imports
            gRPC itself.
        executed: whether `argv` is a command, which gets a guardian, and not a program to run in a fork.
    """

    task: str
    attempt: Count
    argv: list[str]
    environment: dict[str, str]
    private: dict[str, str]
    cwd: str
    log: str
    needs_grpc: bool
    executed: bool = False

    def __repr__(self) -> str:
        """Return its fields, and of `private` the names alone: errors and logs may quote it."""
        shown = {**msgspec.structs.asdict(self), "private": sorted(self.private)}
        return f"StartTask({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The task runs, as the leader of a session and process group of its own."""

    task: TaskName
    attempt: Count
    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """The task has been reaped.

    Attributes:
        status: the exit code; negative, the number of the signal that killed the task.
        killed_for_memory: whether the kernel killed a process for memory at about that time.
    """

    task: TaskName
    attempt: Count
    status: Annotated[int, msgspec.Meta(ge=-64, le=255)]
    peak_memory_bytes: Count
    killed_for_memory: bool = False

    @property
    def exit_code(self) -> int:
        """Return the exit code that a shell reports for the status: 128 + n for signal n."""
        return 128 - self.status if self.status < 0 else self.status


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The task could not be started."""

    task: TaskName
    attempt: Count
    reason: Text


Report = Started | Exited | Refused

REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
STARTS = msgspec.json.Decoder(StartTask)


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as one line; JSON text holds no newline of its own."""
    return msgspec.json.encode(message) + b"\n"


class Lines(Generic[Message]):
    """A stream of bytes, of which each line is one message."""

    def __init__(self, decode: Callable[[bytes], Message], bytes_max: int = LINE_BYTES_MAX) -> None:
        """Begin with nothing.

        Args:
            decode: reads one line, and raises a `ValueError` if it is no message.
            bytes_max: of a line.
        """
        self._decode = decode
        self._bytes_max = bytes_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Add bytes; return the messages that are complete now.

        Raises:
            ValueError: what has come is no message; the text quotes its beginning, and says why.
        """
        *ends, rest = data.split(b"\n")
        messages = []
        for end in ends:
            self._rest += end
            messages.append(self._message(bytes(self._rest)))
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._bytes_max:
            raise ValueError(f"{_quoted(self._rest)}, a line of more than {self._bytes_max} bytes")
        return messages

    def _message(self, line: bytes) -> Message:
        try:
            if reason := oversized(line):
                raise ValueError(reason)
            return self._decode(line)
        except (ValueError, RecursionError, OverflowError) as error:  # msgspec's own errors are ValueErrors
            why = plain_line(f"{error!s:.200}")
            raise ValueError(f"{_quoted(line)}, which is no message of this version: {why}") from None


def _quoted(line: bytes | bytearray) -> str:
    more = "..." if len(line) > _SHOWN else ""
    return repr(line[:_SHOWN].decode(errors="replace")) + more


_READ_BYTES = 1 << 18


class MessageStream(Generic[Message]):
    """Messages to and from the other end, of which neither waits.

    `over`: the other end sends nothing more; `writable`: it may still hear.
    """

    def __init__(self, reading: int, writing: int, lines: Lines[Message]) -> None:
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        self._reading, self._writing, self._lines = reading, writing, lines
        self._waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.over, self.writable = False, True

    def fileno(self) -> int:
        return self._reading

    def send(self, message: msgspec.Struct | bytes) -> None:
        """Send a message, or a line as it is; `pump` writes it."""
        if self.writable:
            line = message if isinstance(message, bytes) else encode(message)
            self._waiting.append(line)
            self.waiting_bytes += len(line)

    def pump(self) -> None:
        """Write what the other end takes at once."""
        try:
            while self._waiting and self.writable:
                written = os.write(self._writing, line := self._waiting.popleft())
                self.waiting_bytes -= written
                if written < len(line):
                    self._waiting.appendleft(line[written:])
        except BlockingIOError:
            self._waiting.appendleft(line)
        except OSError:
            self.end()

    def end(self) -> None:
        self.writable, self.waiting_bytes = False, 0
        self._waiting.clear()

    def read(self) -> list[Message]:
        """Return what has arrived; raise a `ValueError` if it is none of this version."""
        return self._lines.feed(self._arrived())

    def _arrived(self) -> bytes:
        try:
            data = os.read(self._reading, _READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self.over = not data
        return data

    def finish(self, wait_s: float) -> None:
        """Write until nothing waits, at most for `wait_s`."""
        deadline_s = time.monotonic() + wait_s
        self.pump()
        while self._waiting and (left_s := deadline_s - time.monotonic()) > 0:
            select.select([], [self._writing], [], left_s)
            self.pump()


WARM_START_DESCRIPTORS = 4
WARM_START_PATIENCE_S = 5.0
"""How long either end waits for the other's message, and a launcher for the end of what was forked for it."""
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "OPENBLAS_", "MKL_", "OMP_", "BLIS_", "NPY_")
"""How the names of variables begin that an interpreter or a library reads once."""
_INHERITED = {"Umask", "Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed"}
"""The lines of /proc/PID/status that a fork inherits."""


class WarmStart(msgspec.Struct, frozen=True):
    """The request of a launcher.

    Attributes:
        surroundings: what `surroundings` returns in the launcher.
        environment: the launcher's variables.
        cwd: its working directory.
    """

    surroundings: list[str]
    environment: dict[str, str]
    cwd: str


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """The fork server of one launcher has been forked.

    Attributes:
        pid: its process.
        keeper: its parent, which kills all that the fork server leaves when it ends, and then ends too.
    """

    pid: int
    keeper: int


class Differs(msgspec.Struct, frozen=True, tag="differs"):
    """The launcher's surroundings hold something that those of the warm process do not."""

    what: str


def name_of_forked(launcher: int | None) -> str:
    """Return the name of the processes that are forked for a launcher, as it stands in /proc/PID/comm."""
    return f"dtrain-{launcher}"


def surroundings() -> list[str]:
    """Return what this process inherits and no message can change: interpreter, user, limits, namespaces."""
    own = Path("/proc/self")
    kept = [line for line in (own / "status").read_text().splitlines() if line.split(":")[0] in _INHERITED]
    for name in ("limits", "cgroup"):
        kept += [f"{name}: {line}" for line in (own / name).read_text().splitlines()]
    kept += [str(path.readlink()) for path in (own / "root", *sorted((own / "ns").iterdir()))]
    kept += [str(Path(each).absolute()) for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    kept += [f"{name}={value}" for name, value in os.environ.items() if name.startswith(_READ_AT_START)]
    return [sys.executable, f"nice: {os.nice(0)}", *sorted(kept)]
