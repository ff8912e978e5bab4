"""The textfile of `launch --prometheus` has the form that Prometheus reads, and what the run's status says."""

import re
from collections import Counter

import pytest
from click.testing import CliRunner
from launching import wait_until
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, write_record
from dtrain.runs.states import RunState, TaskState
from dtrain_cli.main import cli
from dtrain_cli.runs import prometheus
from dtrain_cli.runs.prometheus import exported, exposition

SAMPLE = re.compile(r'([a-z][a-z0-9_]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parsed(text):
    """The samples of a textfile by (name, label values), and the families by name, as Prometheus reads them."""
    samples, families, seen, current = {}, {}, Counter(), None
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current, _, purpose = line.removeprefix("# HELP ").partition(" ")
            assert purpose.endswith(".")
            seen[current] += 1
        elif line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split()
            assert name == current, "a family stands in one piece"
            families[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            assert found, line
            name, labels, value = found.groups()
            assert name == current
            assert (name, labels) not in samples
            values = {
                key: text.replace(r"\"", '"').replace(r"\n", "\n").replace(r"\\", "\\")
                for key, text in LABEL.findall(labels)
            }
            samples[name, *values.values()] = float(value)
    assert set(seen.values()) == {1}
    assert all(name.endswith("_total") is (kind == "counter") for name, kind in families.items())
    assert all(name.startswith("dtrain_") for name in families)
    return samples, families


def report_of(**changed):
    task = {
        "task": "worker:0",
        "state": TaskState.RUNNING,
        "step": 12,
        "loss": float("nan"),
        "examples_per_s": 1234.5,
        "staleness_mean": None,
        "stale_gradients": 3,
        "restarts": 1,
    }
    seconds = {"good": 7.5, "wait": 2.5}
    goodput = {"share": 0.75, "tasks": [{"task": "worker:0", "seconds": seconds}]}
    return {
        "run": "digits-1",
        "name": "digits",
        "state": RunState.RUNNING,
        "global_step": 12,
        "rolled_back_steps": 4,
        "goodput": goodput,
        "tasks": [task, {**task, "task": "ps:0", "step": None, "state": TaskState.FAILED, "loss": None}],
        **changed,
    }


def test_what_the_status_says_is_there_with_run_and_task():
    samples, families = parsed(exposition(report_of()))
    assert samples["dtrain_up", "digits-1", "digits"] == 1
    assert samples["dtrain_global_step", "digits-1"] == 12
    assert samples["dtrain_rolled_back_steps_total", "digits-1"] == 4
    assert samples["dtrain_goodput_ratio", "digits-1"] == 0.75
    assert samples["dtrain_replica_seconds", "digits-1", "worker:0", "wait"] == 2.5
    assert samples["dtrain_task_up", "digits-1", "worker:0"] == 1
    assert samples["dtrain_task_up", "digits-1", "ps:0"] == 0
    assert samples["dtrain_task_restarts_total", "digits-1", "worker:0"] == 1
    assert samples["dtrain_task_examples_per_second", "digits-1", "worker:0"] == 1234.5
    assert samples["dtrain_task_stale_gradients_total", "digits-1", "worker:0"] == 3
    assert ("dtrain_task_step", "digits-1", "ps:0") not in samples
    assert "dtrain_task_staleness_steps" not in families


def test_a_run_that_has_ended_is_down_and_one_that_never_trained_has_no_goodput():
    samples, families = parsed(exposition(report_of(state=RunState.FAILED, goodput=None)))
    assert samples["dtrain_up", "digits-1", "digits"] == 0
    assert "dtrain_goodput_ratio" not in families


def test_labels_keep_what_a_name_may_hold():
    samples, _ = parsed(exposition(report_of(name='a "b" \\ c\nd')))
    assert ("dtrain_up", "digits-1", 'a "b" \\ c\nd') in samples


@pytest.fixture
def run_dir(tmp_path):
    files = RunFiles(tmp_path / "run")
    files.create()
    tasks = [TaskRecord("worker:0", TaskState.RUNNING)]
    write_record(files.run, RunRecord("digits-1", "digits", RunState.SUCCEEDED, tasks=tasks))
    return files.directory


def test_the_file_is_soon_there_and_is_replaced_as_a_whole(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(prometheus, "EVERY_S", 0.001)
    path = tmp_path / "dtrain.prom"
    with exported(path, run_dir):
        wait_until(path.exists, "the first file")
        first = path.stat().st_mtime_ns
        parsed(path.read_text())
        wait_until(lambda: path.stat().st_mtime_ns != first, "another file")
        path.unlink()
    assert parsed(path.read_text())[0]["dtrain_up", "digits-1", "digits"] == 0
    assert [each.name for each in tmp_path.iterdir() if "prom" in each.name] == ["dtrain.prom"]


def test_a_file_that_cannot_be_written_disturbs_no_run(run_dir, tmp_path):
    with exported(tmp_path / "none" / "x.prom", run_dir):
        pass
    assert not (tmp_path / "none").exists()


@every_row(
    "words, said", [(["--on", "local"], "is no folder"), (["--on", "kubernetes"], "on kubernetes nothing")]
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_starts(tmp_path, words, said):
    program = tmp_path / "program.py"
    program.write_text("")
    options = [
        "launch",
        "--runs-dir",
        str(tmp_path / "runs"),
        "--prometheus",
        str(tmp_path / "none" / "x.prom"),
    ]
    found = CliRunner().invoke(cli, [*options, *words, str(program)], standalone_mode=False)
    assert isinstance(found.exception, SpecError)
    assert said in str(found.exception)
    assert not (tmp_path / "runs").exists()


def test_without_a_file_nothing_is_written(run_dir, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    with exported(None, run_dir):
        pass
    assert sorted(tmp_path.rglob("*")) == before
