"""No control character of another's text ever reaches a terminal: console, box, tables, errors, logs."""

import io
import os
import pty
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from dtrain.errors import SpecError
from dtrain.process.plain_text import plain, plain_data, plain_line
from dtrain.runs import failure
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord
from dtrain.runs.states import RunState, TaskState
from dtrain_cli.console import run_console
from dtrain_cli.console.log_lines import LogTail, without_colours
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.console.run_table import runs_table, status_table
from dtrain_cli.console.streams import Outlet, PlainBytes, PlainStream
from dtrain_cli.runs.report import build_report, first_line

HOSTILE = "\x1b]0;OWNED\x07\x1b[2J\x9b31m\u202eback\u2066\u2028\x7f\x08\r\ud800"
TEXTS = st.one_of(
    st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]) | st.sampled_from("a[]0;mJ\n\t")),
    st.text(),
)


def controls_of(text: str, allowed: str = "\n\t") -> list[str]:
    """The characters that a terminal may obey, found without the code under test."""
    return [
        each
        for each in text
        if each not in allowed
        and (
            unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(each)
            in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
            or each in "\u061c\u200e\u200f"
        )
    ]


@given(TEXTS)
def test_plain_text_has_no_controls_and_stays_as_it_is(text):
    assert not controls_of(plain(text))
    assert not controls_of(plain_line(text), allowed="")
    assert plain(plain(text)) == plain(text)
    assert controls_of(text) or plain(text) == text
    assert plain_data({text: [text, 3, None]}) == {plain(text): [plain(text), 3, None]}


def rendered(parts) -> str:
    out = io.StringIO()
    Console(file=out, width=500, color_system=None).print(parts)
    return out.getvalue()


def report_of(text: str) -> dict:
    tasks = [
        TaskRecord("chief:0", TaskState.RUNNING, host=text, pid=1),
        TaskRecord("worker:0", TaskState.FAILED, host="b", message=text or "x"),
    ]
    failed = FailureRecord("worker:7", text, log=text)
    record = RunRecord("run", text, RunState.FAILED, tasks=tasks, failure=failed, stalled=text)
    return build_report(RunFiles(Path("there")), record, {}, {}, False, 0.0)


@settings(max_examples=40)
@given(TEXTS)
def test_neither_status_nor_runs_nor_the_box_show_any(text):
    report = report_of(text)
    report["unsaved"] = report["run_dir"] = text
    assert not controls_of(rendered(status_table(report, 500)))
    run = {"run": text, "name": text, "state": text, "global_step": 1, "started": text, "ended": text}
    assert not controls_of(rendered(runs_table([{**run, "where": "local"}])))
    failed = FailureRecord(
        text, text, traceback=text or None, last_lines=[text], log=text, likewise=[text], standing=[text]
    )
    assert not controls_of(run_console.render(failed, 100, colour=False))
    assert not controls_of(first_line(text))


@settings(max_examples=40)
@given(TEXTS)
def test_no_record_and_no_traceback_of_a_task_holds_any(text):
    error = ValueError(text)
    assert not controls_of(failure.headline(error) + (failure.traceback_text(error) or ""))


@given(st.lists(st.binary()))
def test_a_log_on_a_terminal_shows_none_wherever_its_pieces_end(pieces):
    shown = PlainBytes()
    assert not controls_of(b"".join(shown.text(piece) for piece in pieces).decode())


@settings(max_examples=40)
@given(TEXTS)
def test_the_console_lets_colours_through_and_nothing_else(tmp_path_factory, text):
    log = tmp_path_factory.mktemp("log") / "output.log"
    log.write_bytes(text.encode(errors="surrogatepass") + b"\n")
    lines = LogTail("worker:0", log).read(to_the_end=True)
    assert not controls_of(without_colours("".join(lines)))


def test_what_the_launcher_says_is_plain():
    reading, writing = os.pipe()
    console = RunConsole(Outlet(writing), Outlet(writing))
    console.say(f"worker:1 has failed: {HOSTILE}")
    console.finish(FailureRecord("worker:1", HOSTILE), HOSTILE, None, HOSTILE)
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert not controls_of(pipe.read().decode())


def test_a_stream_of_a_command_is_plain_and_its_buffer_is_not():
    raw = io.BytesIO()
    stream = PlainStream(raw, "utf-8", errors="backslashreplace", write_through=True)
    print(HOSTILE, file=stream)
    assert not controls_of(raw.getvalue().decode())
    stream.buffer.write(b"\x1b")
    assert raw.getvalue().endswith(b"\x1b")


@pytest.mark.parametrize(
    "command",
    [
        ["check", "spec.yaml"],
        ["status", HOSTILE[:-1]],
        ["launch", "--strategy", HOSTILE[:-1], "p.py"],
        ["chief", "--spec", "spec.yaml", "p.py"],
        ["logs", HOSTILE[:-1]],
    ],
    ids=lambda command: command[0],
)
def test_an_error_of_a_command_is_plain(command, tmp_path):
    (tmp_path / "p.py").touch()
    (tmp_path / "spec.yaml").write_text(
        f"cluster: {{worker: {HOSTILE[:-1]!r}}}\n'a\\eb': 1\nname: '\x9b\u202e'\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "dtrain_cli.main", *command], cwd=tmp_path, capture_output=True
    )
    assert done.returncode != 0
    assert done.stderr
    assert not controls_of((done.stdout + done.stderr).decode())


def test_logs_are_plain_on_a_terminal_and_whole_in_a_pipe(tmp_path):
    files = RunFiles(tmp_path / "runs" / "run")
    files.create()
    record = RunRecord("run", "run", RunState.SUCCEEDED, tasks=[TaskRecord("chief:0", TaskState.SUCCEEDED)])
    from dtrain.cluster import TaskId
    from dtrain.runs.files import write_record

    write_record(files.run, record)
    log = files.log(TaskId.parse("chief:0"), 0)
    log.parent.mkdir(parents=True)
    data = HOSTILE.encode(errors="surrogatepass") + b"\xff\n"
    log.write_bytes(data)
    command = [sys.executable, "-m", "dtrain_cli.main", "logs", "--runs-dir", tmp_path / "runs", "run"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == data
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "OWNED" in shown
    assert not controls_of(re.sub("\r\n", "\n", shown))


def test_a_stranger_s_refusal_is_plain(capsys):
    failure.show(SpecError(f"ps:0 refused: {HOSTILE}"))
    assert not controls_of(capsys.readouterr().err)
