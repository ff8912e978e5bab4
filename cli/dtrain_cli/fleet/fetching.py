"""The end of a run on hosts: what the leader has written in its working directory comes to the launcher's."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dtrain.errors import RunError
from dtrain.runs.files import RunFiles, default_runs_dir, open_own, read_record
from dtrain.runs.json_file import replace_json
from dtrain_cli.agent.copies import FetchedFiles
from dtrain_cli.agent.messages import AllMade, Fetch, MadePart
from dtrain_cli.code import digest_of, mib, shown
from dtrain_cli.fleet.agents import AgentAnswer, Agents, StreamEnded
from dtrain_cli.fleet.host_rules import Gone
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox, signal_name

SILENCE_S = 30.0
"""The longest wait for the next part of a file."""
_TICK_S = 0.2
_SHOWN = 5


def fetch(
    agents: Agents, host: str, files: FetchedFiles, signals: SignalInbox, say: Callable[[str], None]
) -> None:
    problem = _received(agents, host, files, signals)
    files.drop()
    if problem is not None:
        files.problems.append(problem)
    _report(files, host, say)


def _received(agents: Agents, host: str, files: FetchedFiles, signals: SignalInbox) -> str | None:
    if not agents.alive.is_up(host):
        return "the host cannot be reached"
    agents.send(host, Fetch())
    deadline_s = time.monotonic() + SILENCE_S
    while time.monotonic() < deadline_s and not files.full:
        for news in agents.turn(time.monotonic() + _TICK_S):
            match news:
                case AgentAnswer(host=here, answer=MadePart() as part) if here == host:
                    files.write(part)
                    deadline_s = time.monotonic() + SILENCE_S
                case AgentAnswer(host=here, answer=AllMade(problems=problems)) if here == host:
                    files.problems += problems
                    return None
                case StreamEnded(host=here, reason=reason) if here == host:
                    return reason
                case Gone(host=here, silent_s=silent_s) if here == host:
                    return f"no word of the host for {silent_s:.0f} s"
        for number in signals.read():
            if number in STOP_SIGNALS:
                return f"{signal_name(number)} ended the fetching"
    return None if files.full else f"no word of the host's agent for {SILENCE_S:g} s"


def brought_file(cwd: Path) -> Path:
    return default_runs_dir().absolute().with_name("fetched") / f"{digest_of(os.fsencode(cwd))}.json"


def earlier(cwd: Path) -> dict[str, str]:
    try:
        os.close(open_own(brought_file(cwd).parent))
        return read_record(brought_file(cwd), dict[str, str]) or {}
    except (OSError, RunError):  # then nothing here is replaced
        return {}


def remember(cwd: Path, brought: Mapping[str, str]) -> None:
    """Keep the digests of fetched files that are still there; a failure costs the next fetch."""
    path = brought_file(cwd)
    with contextlib.suppress(OSError, RunError):
        RunFiles(path.parent).create()
        there = {name: digest for name, digest in brought.items() if os.path.lexists(cwd / name)}
        replace_json(path, there, private=True)


def apart_text(folder: Path) -> str | None:
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return f"kept apart from files of yours, in {folder}: {shown(names)}" if names else None


def _report(files: FetchedFiles, host: str, say: Callable[[str], None]) -> None:
    if files.names:
        say(f"fetched from {host}, {mib(files.nbytes)}: {shown(files.names)}")
    if files.apart:
        say(f"fetched from {host}, kept apart from files that no fetch has brought: {shown(files.apart)}")
    for problem in files.problems[:_SHOWN]:
        say(f"not fetched from {host}: {problem}")
    if len(files.problems) > _SHOWN:
        say(f"not fetched from {host}: {len(files.problems) - _SHOWN} more files")
