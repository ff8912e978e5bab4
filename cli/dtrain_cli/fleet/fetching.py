"""The end of a run on hosts: what the leader has written in its working directory comes to the launcher's."""

import time
from collections.abc import Callable

from dtrain_cli.agent.made_files import FetchedFiles
from dtrain_cli.agent.messages import AllMade, Fetch, MadePart
from dtrain_cli.fleet.agents import Agents, Ended, Said
from dtrain_cli.fleet.hosts_alive import Gone, Phase
from dtrain_cli.targets.signal_inbox import STOP_SIGNALS, SignalInbox, signal_name

SILENCE_S = 30.0
"""The longest wait for the next part of a file."""
_TICK_S = 0.2
_SHOWN = 5


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
