"""`dtrain plan --strategy pipeline`: the program runs up to its first `fit`, and nothing of it is left."""

import json

import pytest
from answers import is_of
from cli.commands.running import dtrain

PROGRAM = """
import atexit, os, sys, numpy as np, dtrain as dt
from pathlib import Path
print("begins")
if "--hangs" in sys.argv:
    import time
    time.sleep(1000)
if "--fails" in sys.argv:
    raise ValueError("there are no data")
layers = dt.layers
with dt.get_strategy().scope():
    model = dt.Sequential(
        [layers.Dense(6, input_shape=(5,)), layers.Dense(7), layers.Dropout(0.5), layers.Dense(3)]
    )
    model.compile("adam", "mse")
atexit.register(Path("at_exit").touch)
try:
    model.fit(np.ones((64, 5), np.float32), np.ones((64, 3), np.float32), batch_size=16, verbose=0)
finally:
    Path("after_fit").touch()
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Plan stages of the program, and return what was said; nothing is left in any folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)

    def plan(*options, flags=()):
        words = ("--runs-dir", "runs", "--strategy", "pipeline", "--no-evaluator", *options)
        done = dtrain("plan", *words, "program.py", *flags)
        assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
        return done

    return plan


def test_the_table_says_what_each_stage_has_and_what_is_predicted(planned):
    done = planned("--stages", "3", "--set", "training.microbatches=4")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "dtrain: runs program.py up to its first fit, to measure its layers\n"
    before, _, table = done.stdout.partition(
        "\npipeline: the program has run here up to its first fit, and trained nothing\n"
    )
    assert "worker:1  127.0.0.1:" in before
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["task:", "layers", "params", "slots", "kept", "forward", "back", "sends"]
    assert [line.split()[0] for line in lines[1:4]] == ["chief:0:", "worker:0:", "worker:1:"]
    assert lines[1].split()[2:6] == ["144", "B", "288", "B"], "36 parameters, and two slots of Adam for each"
    assert "predicted: " in table
    assert "bubble (S-1)/(m+S-1): 33% of a step" in table


def test_in_json_the_stages_are_as_the_schema_says(planned):
    done = planned("--json", "--workers", "1", "--set", "training.stages=[dense, dense_2]")
    answer = json.loads(done.stdout)
    is_of("plan", answer)
    stages = answer["pipeline"]["stages"]
    assert [(each["task"], each["layers"]) for each in stages] == [
        ("chief:0", ["dense", "dense_1", "dropout"]),
        ("worker:0", ["dense_2"]),
    ]
    assert answer["pipeline"]["steps_per_s"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--stages", "4"), "stages: 4: this model can be cut into at most 3 stages that have variables"),
        (("--workers", "1", "--set", "training.stages=[dense, dens]"), "no layer dens; did you mean dense?"),
    ],
)
def test_a_model_that_cannot_be_cut_so_is_one_message(planned, options, words):
    done = planned(*options)
    assert done.returncode == 2
    [_, message] = done.stderr.splitlines()
    assert words in message
    assert not done.stdout


@pytest.mark.parametrize(
    ("flag", "start_s", "words"),
    [
        (
            "--fails",
            60,
            "program.py has ended with exit code 1 before a call of fit, so its stages are not known",
        ),
        (
            "--hangs",
            1.5,
            "program.py in 1.5 s (wait.start_s) has not come to a call of fit, so its stages are not",
        ),
    ],
)
def test_a_program_that_does_not_come_to_its_fit_is_planned_without_stages(planned, flag, start_s, words):
    done = planned("--set", f"wait.start_s={start_s}", flags=[flag])
    assert done.returncode == 0
    assert words in done.stderr
    assert ("ValueError: there are no data" in done.stderr) == (flag == "--fails")
    assert "worker:1  127.0.0.1:" in done.stdout
    assert "pipeline:" not in done.stdout


def test_replicas_of_a_stage_and_asynchronous_stages_are_planned_too(planned):
    named = (
        "--set",
        "training.stages=[dense, dense_1]",
        "--workers",
        "2",
        "--set",
        "training.microbatches=4",
    )
    shared = planned(*named, "--set", "training.stage_replicas={0: 2}").stdout
    assert [line.split()[:2] for line in shared.splitlines() if ":0: dense" in line] == [
        ["chief:0:", "dense"],
        ["worker:0:", "dense"],
    ]
    assert "bubble (S-1)/(m+S-1): 20% of a step" in shared, "of two stages, whichever computes them"
    flowing = planned("--stages", "3", "--set", "training.schedule=pipedream").stdout
    assert (
        "a bubble at ends of epochs alone\nparams are of one version; the stages keep 3, 2, 1 of them"
        in flowing
    )
