"""The timeline of a run, as Perfetto reads it."""

from hypothesis import given
from hypothesis import strategies as some

from dtrain.cluster import TaskId
from dtrain.runs.events import Reconnected
from dtrain.runs.trace import Ended, Happened, Header, Span
from dtrain_cli.runs.logs import timeline


def header(task, at_s, wall_s, attempt=0):
    return Header(task=task, attempt=attempt, pid=5, host="h", at_s=at_s, wall_s=wall_s)


def shown(events):
    """What is not metadata: (process, name, microseconds)."""
    return [(event["pid"], event["name"], event["ts"]) for event in events if event["ph"] != "M"]


def test_tasks_of_machines_with_other_clocks_stand_on_one():
    here = [header("worker:0", 100.0, 5000.0), Span(name="compute", at_s=100.25, for_s=0.5)]
    there = [header("ps:0", 7.0, 5000.5), Span(name="apply", at_s=7.0, for_s=0.125, whom=None)]
    events = timeline({TaskId.parse("worker:0"): [here], TaskId.parse("ps:0"): [there]})
    assert shown(events) == [
        (0, "attempt 0", 0.0),
        (0, "compute", 250_000.0),
        (1, "attempt 0", 500_000.0),
        (1, "apply", 500_000.0),
    ]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "worker:0", 1: "ps:0"}


def test_a_wait_says_for_whom_and_an_event_its_fields():
    lines = [
        header("worker:0", 0.0, 0.0),
        Span(name="wait", at_s=1.0, for_s=2.0, whom="ps:1"),
        Happened(at_s=3.0, what=Reconnected(peer="ps:1", after_s=2.0)),
        Ended(at_s=4.0),
    ]
    wait, event, ended = [
        e
        for e in timeline({TaskId.parse("worker:0"): [lines]})
        if e["ph"] != "M" and "attempt" not in e["name"]
    ]
    assert (wait["dur"], wait["args"]) == (2_000_000.0, {"whom": "ps:1"})
    assert (event["name"], event["args"]) == ("reconnected", {"peer": "ps:1", "after_s": 2.0})
    assert "limit" in ended["name"]


def test_an_attempt_that_wrote_nothing_is_left_out():
    assert shown(timeline({TaskId.parse("worker:0"): [[], [header("worker:0", 1.0, 9.0, attempt=1)]]})) == [
        (0, "attempt 1", 0.0)
    ]


@given(
    some.integers(0, 10**15),
    some.floats(0, 2e9),
    some.lists(some.integers(1, 10**7), min_size=2, max_size=20),
)
def test_spans_that_follow_each_other_do_not_overlap(first_ns, wall_s, lengths_ns):
    """Perfetto leaves out a span that begins within another one and ends after it."""
    moments = [first_ns / 1e9]
    lines = [header("worker:0", moments[0], wall_s)]
    for length_ns in lengths_ns:
        first_ns += length_ns
        moments.append(first_ns / 1e9)
        lines.append(Span(name="wait", at_s=moments[-2], for_s=moments[-1] - moments[-2], whom="ps:0"))
    spans = [e for e in timeline({TaskId.parse("worker:0"): [lines]}) if e["ph"] == "X"]
    begins = [round(e["ts"] * 1000) for e in spans]
    ends = [round((e["ts"] + e["dur"]) * 1000) for e in spans]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
