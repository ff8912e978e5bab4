"""The end of a run on hosts: what the leader has written in its working directory comes to the launcher's."""

import contextlib
import secrets
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

from dtrain_cli.agent.made_files import is_fetched
from dtrain_cli.agent.messages import AllMade, Fetch, MadePart
from dtrain_cli.fleet.agents import Agents, Ended, Said
from dtrain_cli.fleet.hosts_alive import Gone, Phase
from dtrain_cli.targets.signal_inbox import STOP_SIGNALS, SignalInbox, signal_name

SILENCE_S = 30.0
"""The longest wait for the next part of a file."""
_TICK_S = 0.2
_SHOWN = 5


class FetchedFiles:
    """The files that arrive from a host, written below a folder here: each whole or not at all.

    Attributes:
        names: of the files that are there, relative to the folder.
        nbytes: of all of them.
        problems: why others are not, a sentence each.
    """

    def __init__(self, folder: Path, spared: Collection[Path]) -> None:
        """Begin with none.

        Args:
            folder: to write into.
            spared: files that are never replaced: the code that was sent.
        """
        self.names: list[str] = []
        self.nbytes = 0
        self.problems: list[str] = []
        self._folder = folder
        self._spared = spared
        self._name: str | None = None
        self._aside: Path | None = None
        self._file: BinaryIO | None = None

    def take(self, part: MadePart) -> None:
        """Write a part of a file; the last one gives the file its name."""
        try:
            if part.path != self._name:
                self._begin(part.path)
            if self._file is None:  # of a file that is not written
                return
            self._file.write(part.data)
            if part.last:
                self._complete(part.path)
        except OSError as error:
            self.drop()
            self.problems.append(f"{part.path} cannot be written: {error.strerror or error}")

    def drop(self) -> None:
        """Remove what has arrived of a file that is not whole."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        if self._aside is not None:
            self._aside.unlink(missing_ok=True)
        self._file = self._aside = None

    def _begin(self, name: str) -> None:
        self.drop()
        self._name = name
        target = self._folder / name
        if not is_fetched(name):
            self.problems.append(f"{name[:80]!r} is no name of a file below a folder")
        elif target in self._spared:
            self.problems.append(f"{name} is a file of the code, which is not replaced")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._aside = target.with_name(f".{secrets.token_hex(4)}.fetched")
            self._file = open(self._aside, "xb")  # noqa: SIM115 - it is closed with its last part

    def _complete(self, name: str) -> None:
        assert self._file is not None
        assert self._aside is not None
        self.nbytes += self._file.tell()
        self._file.close()
        self._aside.replace(self._folder / name)
        self._file = self._aside = self._name = None
        self.names.append(name)


def fetch(
    agents: Agents, host: str, files: FetchedFiles, signals: SignalInbox, say: Callable[[str], None]
) -> None:
    """Have a host's agent send what was made there, write it, and say what has come and what has not."""
    problem = _received(agents, host, files, signals)
    files.drop()
    if problem is not None:
        files.problems.append(problem)
    _tell(files, host, say)


def _received(agents: Agents, host: str, files: FetchedFiles, signals: SignalInbox) -> str | None:
    if agents.alive.phase(host) is not Phase.UP:
        return "the host cannot be reached"
    agents.send(host, Fetch())
    deadline_s = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline_s:
        for news in agents.turn(time.monotonic() + _TICK_S):
            match news:
                case Said(host=here, answer=MadePart() as part) if here == host:
                    files.take(part)
                    deadline_s = time.monotonic() + SILENCE_S
                case Said(host=here, answer=AllMade(problems=problems)) if here == host:
                    files.problems += problems
                    return None
                case Ended(host=here, reason=reason) if here == host:
                    return reason
                case Gone(host=here, silent_s=silent_s) if here == host:
                    return f"no word of the host for {silent_s:.0f} s"
        for number in signals.read():
            if number in STOP_SIGNALS:
                return f"{signal_name(number)} ended the fetching"
    return f"no word of the host's agent for {SILENCE_S:g} s"


def _tell(files: FetchedFiles, host: str, say: Callable[[str], None]) -> None:
    if files.names:
        shown = ", ".join(files.names[:_SHOWN])
        more = f" and {len(files.names) - _SHOWN} more" if len(files.names) > _SHOWN else ""
        say(f"fetched from {host}, {files.nbytes / (1 << 20):.1f} MiB: {shown}{more}")
    for problem in files.problems[:_SHOWN]:
        say(f"not fetched from {host}: {problem}")
    if len(files.problems) > _SHOWN:
        say(f"not fetched from {host}: {len(files.problems) - _SHOWN} more files")
