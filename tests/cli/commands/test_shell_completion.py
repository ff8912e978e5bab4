"""Tab in real shells: commands, runs, and tasks although bash cuts words at their colon."""

import os
import pty
import shutil
import subprocess
import sys

import pytest
from launching import SOURCES

from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, write_record

TASKS = ("chief:0", "worker:0", "worker:1", "ps:0")


@pytest.fixture
def folder(tmp_path):
    """With a `dtrain` that writes down its words, and two runs."""
    for run, tasks in (("digits-1", TASKS), ("line-2", ("chief:0",))):
        files = RunFiles(tmp_path / "runs" / run)
        files.directory.mkdir(parents=True)
        records = [TaskRecord(task, "succeeded") for task in tasks]
        write_record(
            files.run,
            RunRecord(
                run, run[:-2], "succeeded", started=f"2026-11-21T10:00:0{run[-1]}+00:00", tasks=records
            ),
        )
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "dtrain"
    answer = f'exec {sys.executable} -m dtrain_cli.main "$@"'
    command.write_text(
        f'#!/bin/sh\n[ -n "$_DTRAIN_COMPLETE" ] && {answer}\nprintf "%s " dtrain "$@" >> words\necho >> '
        "words\n"
    )
    command.chmod(0o755)
    (tmp_path / "my_train.py").touch()
    return tmp_path


def completed(folder, shell: list[str], *typed: str) -> list[str]:
    """What a person called in `folder` who typed these lines, with Tabs."""
    script = subprocess.run(
        [sys.executable, "-m", "dtrain_cli.main", "completion", shell[0]], capture_output=True, check=True
    )
    (folder / "completion").write_bytes(script.stdout)
    person, terminal = pty.openpty()
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": SOURCES, "DTRAIN_RUNS_DIR": str(folder / "runs")}
    environment = {**os.environ, **own, "HOME": str(folder), "TERM": "dumb", "INPUTRC": os.devnull}
    with subprocess.Popen(
        shell,
        cwd=folder,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        os.write(person, "\n".join([*typed, "exit", ""]).encode())
        seen = b""
        try:
            while data := os.read(person, 4096):
                seen += data
        except OSError:  # the shell has closed its end
            pass
        process.wait()
    os.close(person)
    assert (folder / "words").exists(), seen.decode(errors="replace")
    return [line.rstrip() for line in (folder / "words").read_text().splitlines()]


LINES = {
    "dtrain cha\tdigits-\tkill worker:1": "dtrain chaos digits-1 kill worker:1",
    "dtrain logs digits-1 p\t": "dtrain logs digits-1 ps:0",
    "dtrain logs ch\t-f": "dtrain logs chief:0 -f",  # of the newest run
    "dtrain logs digits-1 ps:0 worker:\t1": "dtrain logs digits-1 ps:0 worker:1",
    "dtrain launch --no-ev\tmy\t--no-ev\t my\t": (
        "dtrain launch --no-evaluator my_train.py --no-ev my_train.py"
    ),
}


@pytest.mark.parametrize("shell", ["bash --norc -i", "zsh -f -i"])
def test_tab(folder, shell):
    words = shell.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} here")
    prepare = ["autoload -U compinit; compinit -u"] if words[0] == "zsh" else []
    assert completed(folder, words, *prepare, "source ./completion", *LINES) == list(LINES.values())
