"""Every command that answers has --json, and prints what the schema of its name says, and nothing that it does
not say.
"""

import json
from pathlib import Path

import click
import numpy as np
import pytest
from answers import SCHEMAS, is_of
from net.commands import _commands, _main
from net.commands import dtrain as in_process

EXAMPLES = Path(__file__).parents[3] / "examples"
WITHOUT = {
    **dict.fromkeys(
        ["chief", "worker", "ps", "evaluator", "task"], "becomes a task, whose output is the program's"
    ),
    **dict.fromkeys(["queue move", "queue cancel", "queue drain"], "prints nothing: its exit code says all"),
    "completion": "prints a script for a shell",
    "join-line": "prints lines for a shell",
    "fork-server": "serves until it is ended",
    "help": "prints a text for people",
    "data": "is a group of commands, each of which has it",
}
"""The commands without --json, and why."""


def test_every_command_answers_in_json_or_says_why_not():
    commands = {" ".join(words): command for words, command in _commands((), _main().cli) if words}
    having = {
        name
        for name, command in commands.items()
        if any("--json" in param.opts for param in command.params if isinstance(param, click.Option))
    } | {"tune"}  # its views have it
    assert having | WITHOUT.keys() == commands.keys()
    assert not having & WITHOUT.keys()
    assert {name.replace(" ", "_") for name in having} == {path.stem for path in SCHEMAS.glob("*.json")}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What commands have printed about one run and some files, by the name of the schema."""
    folder = tmp_path_factory.mktemp("answers")
    found = {}

    def say(*words, code=0, schema=None):
        said, out, err = in_process(words[0], "--json", *words[1:], folder=folder)
        assert said == code, (words, out, err)
        found.setdefault(schema or words[0], []).append(
            json.loads(out.splitlines()[-1] if words[0] != "plan" else out)
        )

    (folder / "bad.yaml").write_text("cluster: {workr: 2}\n")
    (folder / "two.yaml").write_text("cluster: {worker: ['a:2222'], ps: ['b:2222']}\n")
    (folder / "a.csv").write_text("a,b\n1,2\n3,4\n")
    say("examples")
    say("examples", "digits")
    say("init", "mine")
    say("env")
    say("secret", "run.secret")
    say("certificates", "two.yaml", "--out", "tls")
    say("check", "two.yaml")
    say("check", "bad.yaml", code=2)
    say("plan", "examples/digits.py")
    say("runs")
    say("queue")
    return folder, found, say


def test_answers_about_no_run(answers):
    _, found, _ = answers
    assert found["check"][1]["mistakes"], "it names the mistake"
    for name, values in list(found.items()):
        for value in values:
            is_of(name, value)


def test_answers_about_a_run(answers, launcher):
    launcher.folder.joinpath("x").mkdir()
    launch = launcher.start(
        *(
            "--no-evaluator",
            "--workers",
            "1",
            "--ps",
            "1",
            "--name",
            "digits",
            "--set",
            "trace=true",
            "--json",
        ),
        *(EXAMPLES / "digits.py", "--steps", "20"),
        run_dir=None,
    )
    assert launch.end() == 0, launch.err
    is_of("launch", json.loads(launch.out.splitlines()[-1]))
    run = str(launch.run_dir)
    np.savez(launcher.folder / "t.npz", x=np.zeros((3, 64), np.float32), y=np.zeros(3, np.int64))
    (launcher.folder / "a.csv").write_text("a,b\n1,2\n3,4\n")
    said = {
        "status": ["status", run],
        "runs": ["runs"],
        "logs": ["logs", run, "chief:0"],
        "stop": ["stop", run],
        "tune": ["tune", "status"],
        "trace": ["trace", run],
        "report": ["report", run],
        "evaluate": ["evaluate", run, "t.npz"],
        "predict": ["predict", run, "t.npz"],
        "export": ["export", run, "m.onnx"],
        "data_inspect": ["data", "inspect", "a.csv", "nothing.csv"],
        "data_index": ["data", "index", "a.csv"],
        "rm": ["rm", run],
    }
    pytest.importorskip("onnx", reason="export needs dtrain[onnx]")
    for name, words in said.items():
        command = launcher.dtrain(*words, "--json")
        code = command.end()
        assert code == (1 if name == "data_inspect" else 0), (words, command.err)
        lines = command.out.splitlines()
        assert lines if name == "logs" else len(lines) == 1
        for line in lines:
            is_of(name, json.loads(line))
    assert not launch.run_dir.joinpath("run.json").exists()


def test_an_act_of_chaos_and_a_waiting_launch(launcher):
    (line := launcher.folder / "line").mkdir()
    environment = {"DTRAIN_QUEUE_DIR": str(line)}
    program = launcher.program("status()\nforever()")
    launch = launcher.start("--queue", "--cores", "1", program, environment=environment)
    launch.wait_running()
    queue = launcher.dtrain("queue", "--json", environment=environment)
    assert queue.end() == 0, queue.err
    is_of("queue", json.loads(queue.out))
    assert len(json.loads(queue.out)["launches"]) == 1
    for words in (["slow", "worker:0", "2"], ["kill", "worker:0"]):
        chaos = launcher.dtrain("chaos", str(launch.run_dir), *words, "--json")
        assert chaos.end() == 0, chaos.err
        is_of("chaos", json.loads(chaos.out))
    stop = launcher.dtrain("stop", str(launch.run_dir), "--json")
    assert stop.end() == 0, stop.err
    is_of("stop", json.loads(stop.out))
    assert json.loads(stop.out)["state"] == "stopped"
