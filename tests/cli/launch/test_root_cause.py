import pytest

from dtrain.cluster import TaskId
from dtrain.process.start_protocol import Exited
from dtrain.runs.files import FailureRecord, RunFiles, write_record
from dtrain.runs.states import FailureKind
from dtrain_cli.console.run_console import render
from dtrain_cli.launch.tasks import describe, earliest, failure_of, last_lines
from dtrain_cli.plan.run_plan import TaskLaunch
from dtrain_cli.targets import local


def failure(task: str, monotonic_s: float, kind: str = "exception") -> FailureRecord:
    return FailureRecord(task, f"{kind} of {task}", kind=FailureKind(kind), monotonic_s=monotonic_s)


def test_the_earliest_cause_wins_and_a_lost_peer_never_beats_a_crash():
    crash, late, lost = (
        failure("ps:0", 5.0, "signal"),
        failure("worker:1", 6.0),
        failure("chief:0", 1.0, "peer_lost"),
    )
    assert earliest([lost, late, crash]) is crash
    assert earliest([lost]) is lost
    assert earliest([]) is None


def test_ends_in_words():
    assert describe(Exited("worker:0", 0, -11, 0), killed_for_memory=False) == "killed by SIGSEGV (signal 11)"
    assert (
        describe(Exited("worker:0", 0, -63, 0), killed_for_memory=False) == "killed by a signal (signal 63)"
    )
    assert describe(Exited("worker:0", 0, 3, 0), killed_for_memory=False) == "exited with code 3"
    assert (
        describe(Exited("worker:0", 0, 143, 0), killed_for_memory=False)
        == "exited with code 143 (128 + SIGTERM)"
    )
    killed = describe(Exited("worker:0", 0, -9, 6 << 30), killed_for_memory=True)
    assert killed == "killed by the kernel for memory (peak 6.0 GiB)"


def test_the_log_of_a_failure_is_the_launchers_copy(tmp_path):
    """A task on another host has written where the log is there."""
    task = TaskId.parse("worker:0")
    files = RunFiles(tmp_path)
    files.log(task, 0).parent.mkdir(parents=True)
    files.log(task, 0).write_text("its end\n")
    write_record(files.failure(task, 0), FailureRecord("worker:0", "it is", log="/over/there/output.log"))
    launch = TaskLaunch(task, None, None, ("sh",), (), {}, tmp_path, tmp_path, needs_grpc=False)
    record = failure_of(launch, Exited("worker:0", 0, 1, 0))
    assert (record.message, record.log, record.last_lines) == ("it is", str(launch.log), ["its end"])


def test_the_last_lines_of_a_log_are_few_and_short(tmp_path):
    log = tmp_path / "output.log"
    assert last_lines(log) == []
    log.write_bytes(b"early\n" * 100 + b"x" * 100_000 + b"\nbad \xff byte\nhalf")
    *_, long, bad, half = last_lines(log)
    assert len(last_lines(log)) == 3, "what lies before the last 64 KiB is not read"
    assert (long, bad, half) == ("x" * 400 + " ...", "bad \ufffd byte", "half")


def test_the_box_holds_the_record_and_shortens_what_is_too_long():
    record = failure("worker:1", 1.0)
    record.traceback = "\n".join(f"line {number}" for number in range(100))
    record.log, record.exit_code, record.peak_memory_bytes = "/runs/x/output.log", 1, 64 << 20
    box = render(record, width=80, colour=False)
    for text in (
        "worker:1 failed",
        "exception of worker:1",
        "line 0",
        "line 99",
        "60 more lines",
        "64 MiB",
        "/runs/x/output.log",
    ):
        assert text in box
    assert "\x1b" not in box
    assert all(len(line) <= 80 for line in box.splitlines())


def test_the_box_shows_no_marks_that_folding_moves_and_no_codes_that_change_the_terminal():
    record = failure("worker:1", 1.0)
    record.traceback = '  File "x.py", line 1, in <module>\n    f(\x1b[2J)\n    ~^^^^^\nValueError: \x07'
    box = render(record, width=80, colour=False)
    assert "\\x1b[2J" in box
    assert "^" not in box
    assert not {"\x1b", "\x07"} & set(box)


def test_one_endless_line_does_not_fill_the_screen():
    record = failure("worker:1", 1.0)
    record.message = "ValueError: " + "x" * 2000
    record.traceback = "Traceback (most recent call last):\n" + record.message
    assert len(render(record, width=80, colour=False).splitlines()) < 25


def test_the_box_names_those_that_failed_likewise_and_says_nothing_twice():
    record = failure("worker:1", 1.0)
    record.likewise = [f"worker:{index}" for index in range(2, 9)]
    record.last_lines = ["reading", record.message]
    box = render(record, width=80, colour=False)
    assert "likewise worker:2, worker:3, worker:4, worker:5, worker:6 and 2 more" in box
    assert "reading" in box
    assert box.count(record.message) == 1


EVENTS = {
    "0::/user.slice/run.scope\n": (
        "user.slice/run.scope/memory.events",
        "low 0\nhigh 0\nmax 31\noom {0}\noom_kill {0}\noom_group_kill 0\n",
    ),
    "9:cpu:/\n4:memory:/box/7\n0::/\n": (
        "memory/box/7/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
    ),
    "0::/\n": ("../vmstat", "pgfault 123\noom_kill {}\nnuma_hit 5\n"),
}
"""What the kernel writes: control groups of version 2, of version 1, and none of one's own."""


@pytest.mark.parametrize("groups", EVENTS)
def test_a_kill_for_memory_is_read_where_the_kernel_counts_it(tmp_path, monkeypatch, groups):
    place, text = EVENTS[groups]
    for name, path in {"_CGROUPS": "groups", "_OWN_GROUPS": "own", "_MACHINE": "vmstat"}.items():
        monkeypatch.setattr(local, name, tmp_path / path)
    counts = tmp_path / "groups" / place
    (tmp_path / "groups").mkdir()
    counts.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "own").write_text(groups)
    counts.write_text(text.format(3))
    kills = local.MemoryKills()
    assert not kills.lately(10.0)
    counts.write_text(text.format(4))
    kills.poll(11.0)
    assert kills.lately(12.0), "of all tasks that it hit"
    assert kills.lately(13.0)
    assert not kills.lately(60.0), "what is killed an hour later was not killed for memory"
