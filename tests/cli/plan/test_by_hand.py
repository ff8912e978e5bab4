"""`dtrain plan` of a spec with addresses: what is typed on which host, and it is what starts that task there."""

import itertools
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dtrain.cluster import ClusterSpec, TaskId
from dtrain_cli.main import cli
from dtrain_cli.plan.standalone_start import StandaloneStart, is_by_hand, lines_by_hand

SPEC = Path(__file__).parents[3] / "cluster_specs" / "two_hosts.yaml"


@pytest.fixture
def program(tmp_path):
    (tmp_path / "p.py").write_text("print(1)\n")
    return str(tmp_path / "p.py")


def plan(*words):
    return CliRunner().invoke(cli, ["plan", *words], standalone_mode=False, catch_exceptions=False).output


def test_each_host_has_the_lines_of_its_tasks(program):
    output = plan(str(SPEC), program, "--steps", "5")
    hosts = [line for line in output.splitlines()[1:] if line and not line.startswith((" ", "each"))]
    assert hosts == ["machine-a", "machine-b", "where you like"]
    assert "examples" not in output
    assert f"  dtrain ps --spec {SPEC} --index 1\n" in output.partition("machine-b")[2]
    assert (
        f"  dtrain worker --spec {SPEC} --index 0 {program} --steps 5\n" in output.partition("machine-b")[0]
    )
    assert "--secret-file" in output


def test_every_line_starts_the_task_that_it_says(program):
    output = plan("--updates", "sync", "--set", "checkpoint.every_s=9", str(SPEC), program)
    lines = [shlex.split(line) for line in output.splitlines() if line.startswith("  dtrain ")]
    assert len(lines) == 6
    for words in lines:
        role, at = words[1], words.index("--index")
        sets = tuple(word for before, word in itertools.pairwise(words) if before == "--set")
        start = StandaloneStart(TaskId.parse(f"{role}:0").role, int(words[at + 1]), SPEC, sets)
        found = start.assignment({"DTRAIN_INSECURE": "1"})
        assert str(found.task) == f"{role}:{words[at + 1]}"
        assert (found.spec.training.updates, found.spec.checkpoint.every_s) == ("sync", 9)


def test_a_foreign_command_gets_its_tf_config(program):
    output = plan(str(SPEC), "--", "python", "t.py")
    line = next(
        line
        for line in output.splitlines()
        if '"worker", "index": 1' in line or '"index":1' in line.replace(" ", "")
    )
    assert line.startswith("  TF_CONFIG='{")
    assert line.endswith("}' python t.py")


def test_counts_are_still_planned_for_this_machine(program):
    assert "addresses are examples" in plan("--workers", "1", program)
    assert not is_by_hand(ClusterSpec.from_lists(worker=["127.0.0.1:1"]))
    assert list(lines_by_hand([], ClusterSpec.from_lists(worker=["a:1"]), "s", {}, (), False)) == []
