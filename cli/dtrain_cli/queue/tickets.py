"""The tickets of the queue as files, and the locks that say which of them count. No process serves it.

    <queue>/                    mode 0700, or 1777 where several users share it; locked (flock) for a moment
                                by each process that enters, starts, moves or cancels a launch
        drained                 there while no launch may start; by the folder's owner or root
        <run>.<pid>.ticket      `Ticket`: the claim of one launch, which holds its lock (flock)

A ticket counts while its launcher holds its lock, which the kernel releases however the launcher ends: a
claim of a dead one is none. Every change changes the time of the folder, which is all that those who wait
look at.
"""

import contextlib
import fcntl
import os
import pwd
import re
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from dtrain.errors import RunError, SpecError
from dtrain.formats.bounded_reading import open_regular
from dtrain.process.resources import own_memory_bytes
from dtrain.process.secret import state_home
from dtrain.runs.json_file import overwrite_json, read_sound
from dtrain_cli.queue.rules import Capacity, Ticket

QUEUE_DIR = "DTRAIN_QUEUE_DIR"
LOCK_PATIENCE_S = 30.0
TICKET_BYTES = 4096
_TICKET = re.compile(r".+\.\d+\.ticket(\.new)?")
SETTLED_NS = 50_000_000
"""A change that follows another one this closely may leave the time of the folder as it is."""


def capacity_of_machine() -> Capacity:
    """Return the cores and the memory that this process may use: of the machine, or of its control group."""
    return Capacity(len(os.sched_getaffinity(0)), own_memory_bytes())


def user_name(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"


class TicketFolder:
    """The folder of the tickets: DTRAIN_QUEUE_DIR, which users may share, else this user's for this host.

    `own` is the file of this process's ticket, once it has one; closing gives that back.

    Raises:
        SpecError: DTRAIN_QUEUE_DIR names no folder that its users can share.
        RunError: it cannot be made.
    """

    def __init__(self) -> None:
        shared = os.environ.get(QUEUE_DIR)
        own = state_home() / "dtrain" / "queue" / socket.gethostname()
        self.path = Path(shared).absolute() if shared else own
        self.own = ""
        self._held = contextlib.ExitStack()
        try:
            if not shared:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _opened(self._held, self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise RunError(f"the queue {self.path}: {error.strerror}; name another by {QUEUE_DIR}") from None
        facts = os.fstat(self._lock)
        self._masters = (0, facts.st_uid)
        if facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:
            raise SpecError(f"the queue {self.path}: others could remove tickets; `chmod +t` prevents it")

    def close(self) -> None:
        self._held.close()

    @contextlib.contextmanager
    def locked(self) -> Iterator[list[Ticket]]:
        """Hold the lock of the folder for a moment, and yield its tickets; it is waited for for a while.

        Raises a `RunError` if another process keeps it.
        """
        until_s = time.monotonic() + LOCK_PATIENCE_S
        while not _locks(self._lock, fcntl.LOCK_EX):
            if time.monotonic() >= until_s:
                raise RunError(f"{self.path} stays locked; `fuser` names the process, which may be stopped")
            time.sleep(0.01)
        try:
            yield self.tickets()
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def time_of_change(self) -> int | None:
        """Return the time of the last change in ns; None while another one may have the same."""
        changed_ns = self.path.stat().st_mtime_ns
        return changed_ns if abs(time.time_ns() - changed_ns) > SETTLED_NS else None

    def tickets(self) -> list[Ticket]:
        """Return the tickets whose launchers live; a ticket that cannot be read claims nothing."""
        names = sorted(path.name for path in self.path.glob("*.ticket"))
        return [ticket for name in names if (ticket := self.read(name)) is not None]

    def read(self, name: str) -> Ticket | None:
        """Return the ticket of a file; None: its launcher has died, or it is no ticket."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
            descriptor = open_regular(self.path / name, follow=False)
            closing.callback(os.close, descriptor)
            if not _locks(descriptor, fcntl.LOCK_SH) and (ticket := read_sound(self.path / name, Ticket)):
                return replace(ticket, uid=os.fstat(descriptor).st_uid, file=name)
        return None

    def enter(self, ticket: Ticket, tickets: list[Ticket]) -> None:
        """Put a ticket last in line, and remove those of dead launchers; the caller holds the lock."""
        for path in self.path.iterdir():
            if _TICKET.fullmatch(path.name) and path.name not in {each.file for each in tickets}:
                with contextlib.suppress(OSError):  # another user's
                    path.unlink()
        self.own = f"{ticket.run}.{ticket.pid}.ticket"
        new = self.path / f"{self.own}.new"  # until it is locked
        descriptor = _opened(self._held, new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.fchmod(descriptor, 0o644)  # the folder says who may read it
        os.posix_fallocate(descriptor, 0, TICKET_BYTES)  # each change is one write then, also on a full disk
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(self.path / self.own)
        self._held.callback((self.path / self.own).unlink, missing_ok=True)
        self.write(replace(ticket, file=self.own, place=max((each.place for each in tickets), default=0) + 1))

    def write(self, ticket: Ticket) -> None:
        """Overwrite a ticket, and have all who wait look again; the caller holds the lock."""
        overwrite_json(self.path / ticket.file, ticket)
        os.utime(self.path)

    @property
    def drained(self) -> bool:
        with contextlib.suppress(OSError):
            return (self.path / "drained").lstat().st_uid in self._masters
        return False

    def drain(self, on: bool) -> None:
        """Let no launch start from now on, or again; raise a `SpecError` if that is another user's to say."""
        if os.geteuid() not in self._masters:
            raise SpecError(f"{self.path}: only {user_name(self._masters[1])} and root can drain it")
        (self.path / "drained").unlink(missing_ok=True)  # also what a user without the right has made
        if on:
            (self.path / "drained").touch()


def _opened(held: contextlib.ExitStack, path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    held.callback(os.close, descriptor)
    return descriptor


def _locks(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
