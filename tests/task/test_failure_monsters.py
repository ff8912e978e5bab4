"""What a task leaves and prints names the user's error, however odd it is, and never an error of the
recorder's own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.errors import DtrainError, PeerLostError
from dtrain.process.assignment import TaskAssignment
from dtrain.runs import failure
from dtrain.runs.files import FailureRecord, RunFiles, read_record
from dtrain.runs.json_file import RESERVE_BYTES

TASK = TaskId.parse("worker:0")
DRAWN = 300 if "DTRAIN_FUZZ" in os.environ else 30


class Unspeakable(Exception):
    """Neither its text nor its representation can be had."""

    def __str__(self):
        raise RuntimeError("no text today")

    __repr__ = __str__


class Impatient(Exception):
    """Asking for its text ends the program."""

    def __str__(self):
        raise SystemExit(0)


class OddText(str):
    """A text whose methods are not those of a text."""

    def partition(self, *_):
        raise TypeError("no parts")

    encode = __getitem__ = __len__ = partition


class OddlyTold(Exception):
    def __str__(self):
        return OddText("odd")


class Forgetful(DtrainError):
    exit_code = "none"


class Lying(DtrainError):
    exit_code = 0


def recursion() -> BaseException:
    def down(depth):
        return up(depth + 1)

    def up(depth):
        return down(depth + 1)

    try:
        down(0)
    except RecursionError as error:
        return error


def chained_to_itself() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    first.__context__ = first
    return first


def long_chain() -> BaseException:
    error: BaseException = ValueError("link 0")
    for number in range(1, 3000):
        after = ValueError(f"link {number}")
        after.__cause__, error = error, after
    return error


def nested_groups(depth: int) -> BaseException:
    error: Exception = Unspeakable()
    for _ in range(depth):
        error = ExceptionGroup("group \udcf6", [error, ValueError("beside it")])
    return error


def with_odd_notes() -> BaseException:
    error = ValueError("noted")
    error.__notes__ = [Unspeakable(), "\udc80", 5]
    return error


def odd_syntax() -> BaseException:
    error = SyntaxError("syntax", ("file\udcff", 10**9, -5, "x" * 1000))
    error.lineno, error.end_offset, error.text = "no number", object(), b"bytes"
    return error


MAKERS = {
    "lone surrogates": lambda: FileNotFoundError(2, "No such file", "/data/gr\udcf6\udcdfe.csv"),
    "unspeakable": Unspeakable,
    "impatient": Impatient,
    "odd text": OddlyTold,
    "1 MB": lambda: ValueError("x" * 1_000_000),
    "many lines": lambda: ValueError("\u2603\n" * 50_000),
    "controls": lambda: ValueError("\x1b[2J\x00\x07\r"),
    "recursion": recursion,
    "chained to itself": chained_to_itself,
    "long chain": long_chain,
    "group": lambda: nested_groups(3),
    "deep groups": lambda: nested_groups(600),
    "odd notes": with_odd_notes,
    "odd syntax": odd_syntax,
    "forgetful": lambda: Forgetful("of its code \udc80"),
    "lying": lambda: Lying("that all is well"),
    "a lost peer": lambda: PeerLostError("ps:0 \udc80"),
    "exit with a monster": lambda: SystemExit(Unspeakable()),
    "exit with a surrogate": lambda: SystemExit("gr\udcf6"),
    "exit with a huge number": lambda: SystemExit(2**80),
    "exit with 256": lambda: SystemExit(256),
}

monsters = st.sampled_from(sorted(MAKERS))


def test_each_monster_is_what_is_recorded_and_shown(tmp_path, capsys):
    for monster in MAKERS:
        assert_recorded_and_shown(tmp_path, capsys, monster)


@settings(
    max_examples=DRAWN, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(monster=monsters, cause=st.none() | monsters, context=st.none() | monsters, raised=st.booleans())
def test_whatever_is_raised_is_what_is_recorded_and_shown(tmp_path, capsys, monster, cause, context, raised):
    assert_recorded_and_shown(tmp_path, capsys, monster, cause, context, raised)


def assert_recorded_and_shown(tmp_path, capsys, monster, cause=None, context=None, raised=False):
    error = MAKERS[monster]()
    if cause is not None:
        error.__cause__ = MAKERS[cause]()
    if context is not None:
        error.__context__ = MAKERS[context]()
    if raised:
        try:
            raise error
        except BaseException as caught:
            error = caught
    cluster = ClusterSpec.from_lists(worker=["a:1"])
    assignment = replace(TaskAssignment.by_hand(cluster, TASK, {}), run_dir=tmp_path)
    failure.record(error, assignment)
    path = RunFiles(tmp_path).failure(TASK, 0)
    record = read_record(path, FailureRecord)
    assert path.stat().st_size <= RESERVE_BYTES, "it must fit into the room that is held on a full disk"
    assert 0 < record.exit_code < 256
    told = "" if isinstance(error, SystemExit) else type(error).__name__
    assert record.message.startswith(told)
    assert record.message
    capsys.readouterr()
    failure.show(error)
    shown = capsys.readouterr().err
    assert told in shown
    assert shown, "the log has the message"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("lone surrogates", "FileNotFoundError: [Errno 2] No such file: '/data/gr\\udcf6\\udcdfe.csv'"),
        ("unspeakable", "Unspeakable: (its text cannot be had: RuntimeError)"),
        ("exit with a surrogate", "gr\\udcf6"),
        ("group", "ExceptionGroup: group \\udcf6 (2 sub-exceptions)"),
    ],
)
def test_what_can_be_said_is_said(make, message):
    described = failure.describe(
        MAKERS[make](), TaskAssignment.by_hand(ClusterSpec.from_lists(worker=["a:1"]), TASK, {})
    )
    assert described.message == message


def run_program(folder: Path, program: str) -> subprocess.CompletedProcess:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "dtrain.task", "program.py"]
    environment = {
        **os.environ,
        "TF_CONFIG": '{"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}',
        "DTRAIN_RUN_DIR": str(folder / "run"),
    }
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_a_path_that_is_not_utf8_is_named_in_the_record_and_on_stderr(tmp_path):
    done = run_program(
        tmp_path,
        (
            "import os, numpy as np, dtrain as dt; dt.get_strategy; "
            'np.loadtxt(os.fsdecode(b"/data/gr\\xf6\\xdfe.csv"))'
        ),
    )
    record = read_record(RunFiles(tmp_path / "run").failure(TASK, 0), FailureRecord)
    assert done.returncode == 1
    assert record.message == "FileNotFoundError: /data/gr\\udcf6\\udcdfe.csv not found."
    assert "FileNotFoundError: /data/gr\\udcf6\\udcdfe.csv not found." in done.stderr
    assert "UnicodeEncodeError" not in done.stderr


@pytest.mark.parametrize(
    ("code", "ends"), [("-1", 255), ("256", 1), ("-256", 1), ("255", 255), ("True", 1), ("3", 3)]
)
def test_no_exit_code_but_0_ends_as_success(tmp_path, code, ends):
    done = run_program(tmp_path, f"raise SystemExit({code})")
    record = read_record(RunFiles(tmp_path / "run").failure(TASK, 0), FailureRecord)
    assert (done.returncode, record.exit_code) == (ends, ends)
    if "256" in code:
        assert record.message == (
            f"exited with code {code}, of which the system would keep 0: it counts as a failure, exit code 1"
        )
        assert record.message in done.stderr


def test_an_excepthook_that_fails_does_not_hide_the_error(tmp_path):
    done = run_program(
        tmp_path,
        "import sys\ndef hook(*_): raise KeyError('mine')\nsys.excepthook = hook\nraise ValueError('seven')",
    )
    assert done.returncode == 1
    assert "ValueError: seven" in done.stderr
    assert "KeyError: 'mine'" in done.stderr
