"""The fetching of what a leader has written ends, whatever becomes of its host or of the user's patience."""

import signal
from types import SimpleNamespace

from row_by_row import every_row

from dtrain_cli.agent.copies import FetchedFiles
from dtrain_cli.agent.messages import AllMade, MadePart
from dtrain_cli.fleet.agents import AgentAnswer, StreamEnded
from dtrain_cli.fleet.host_rules import Gone
from dtrain_cli.fleet.target import fetch

HALF = AgentAnswer("h1", MadePart("half", b"x", last=False))
WHOLE = AgentAnswer("h1", MadePart("whole", b"x", last=True))


class Agents:
    """The agents of a run, whose news are given."""

    def __init__(self, *turns, up=True) -> None:
        self._turns = iter(turns)
        self.sent: list[str] = []
        self.alive = SimpleNamespace(is_up=lambda _: up)

    def send(self, host, order) -> None:
        self.sent.append(host)

    def turn(self, until_s):
        return next(self._turns)


@every_row(
    "turns, numbers, said",
    [
        ([[WHOLE], [AgentAnswer("h1", AllMade([]))]], [], None),
        ([[WHOLE], [AgentAnswer("h1", AllMade(["b cannot be read: no"]))]], [], "b cannot be read: no"),
        ([[WHOLE, HALF], [StreamEnded("h1", "h1: it is gone", True)]], [], "h1: it is gone"),
        ([[WHOLE, HALF], [Gone("h1", (), False, 15.0)]], [], "no word of the host for 15 s"),
        ([[WHOLE, HALF]], [signal.SIGINT], "SIGINT (Ctrl-C) ended the fetching"),
        ([[StreamEnded("h2", "another host", True), WHOLE], [AgentAnswer("h1", AllMade([]))]], [], None),
    ],
)
def test_it_ends_with_whole_files_and_the_reason_in_words(tmp_path, turns, numbers, said):
    lines: list[str] = []
    inbox = SimpleNamespace(read=lambda: numbers)
    fetch(Agents(*turns), "h1", FetchedFiles(tmp_path), inbox, lines.append)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert lines[0] == "fetched from h1, 0.0 MiB: whole"
    assert lines[1:] == ([f"not fetched from h1: {said}"] if said else [])


def test_a_host_that_is_lost_is_not_asked(tmp_path):
    lines: list[str] = []
    agents = Agents(up=False)
    fetch(agents, "h1", FetchedFiles(tmp_path), SimpleNamespace(read=list), lines.append)
    assert lines == ["not fetched from h1: the host cannot be reached"]
    assert agents.sent == []
