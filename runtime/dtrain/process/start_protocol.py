"""The messages between the launcher and the processes that start tasks for it: one JSON object a line.

The launcher sends a `StartTask`; the fork server (or, for one foreign command, its guardian) answers with
`Started` or `Refused`, and later with `Exited`. Tasks are named with the attempt, so that a late report about
an earlier attempt is recognised.
"""

import msgspec


class StartTask(msgspec.Struct, frozen=True):
    """An order to fork a task.

    Attributes:
        argv: the program and its arguments, as `sys.argv` of the task.
        environment: variables that are set on top of the launcher's own environment.
        private: those that only the task may see (`process.private_variables`).
        cwd: the working directory.
        log: the file to which the task's stdout and stderr are appended; it exists.
        needs_grpc: it serves, or its servers may not be on this host. A task that finds out otherwise imports
            gRPC itself.
    """

    task: str
    attempt: int
    argv: list[str]
    environment: dict[str, str]
    private: dict[str, str]
    cwd: str
    log: str
    needs_grpc: bool

    def __repr__(self) -> str:
        """Return its fields, and of `private` the names alone: errors and logs may quote it."""
        shown = {**msgspec.structs.asdict(self), "private": sorted(self.private)}
        return f"StartTask({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The task runs, as the leader of a session and process group of its own."""

    task: str
    attempt: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """The task has been reaped.

    Attributes:
        status: the exit code; negative, the number of the signal that killed the task.
        killed_for_memory: whether the kernel killed a process for memory at about that time.
    """

    task: str
    attempt: int
    status: int
    peak_memory_bytes: int
    killed_for_memory: bool = False

    @property
    def exit_code(self) -> int:
        """Return the exit code that a shell reports for the status: 128 + n for signal n."""
        return 128 - self.status if self.status < 0 else self.status


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The task could not be started."""

    task: str
    attempt: int
    reason: str


Report = Started | Exited | Refused

_REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
_STARTS = msgspec.json.Decoder(StartTask)


def encode(message: StartTask | Report) -> bytes:
    """Return a message as one line; JSON text holds no newline of its own."""
    return msgspec.json.encode(message) + b"\n"


class Lines:
    """A stream of bytes, cut into whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; return the lines that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def decode_report(line: bytes) -> Report:
    """Read one line of a fork server or guardian."""
    return _REPORTS.decode(line)


def decode_start(line: bytes) -> StartTask:
    """Read one line of the launcher."""
    return _STARTS.decode(line)
