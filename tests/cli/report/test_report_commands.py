"""`dtrain report` and `dtrain compare` as commands: what they write where, and what they refuse."""

import json
import signal

from answers import is_of
from cli.report.conftest import tell
from launching import wait_until

from dtrain_cli.commands.compare import MODES
from dtrain_cli.spec import read_spec

PROGRAM = """
import numpy as np
import dtrain as dt

strategy = dt.get_strategy()
with strategy.scope():
    model = dt.Sequential([dt.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.arange(8, dtype=np.float32).reshape(8, 1) / 8
model.fit(x, 2 * x, batch_size=4, epochs=3, verbose=0, validation_data=(x, 2 * x))
"""
ONE_EACH = ("--workers", "1", "--ps", "1", "--no-evaluator", "--set", "cluster.chief=0")


def test_a_page_is_written_beside_and_its_place_is_said(tmp_path, launcher):
    tell(tmp_path / "runs" / "r1", "sync")
    tell(tmp_path / "runs" / "r2", "async")
    command = launcher.dtrain("report", "r1", "async")
    assert command.end() == 0
    assert command.err == "r1+1.html: open it in a browser\n"
    assert "sync: steps" in (tmp_path / "r1+1.html").read_text()
    command = launcher.dtrain("report", "r1", "--out", "-")
    assert command.end() == 0
    assert command.out.startswith("<!doctype html>")
    assert command.out.endswith("</html>\n")


def test_text_and_json_are_printed(tmp_path, launcher):
    tell(tmp_path / "runs" / "r1")
    command = launcher.dtrain("report", "--json")
    assert command.end() == 0
    said = json.loads(command.out)
    assert said["figures"][0]["final"]["accuracy"] == 0.375
    assert said["runs"][0]["marks"][-1] == {
        "at_s": 10.75,
        "step": 10,
        "kind": "rollback",
        "text": "rolled back by 5 steps",
    }
    command = launcher.dtrain("report", "r1", "--text", environment={"COLUMNS": "60"})
    assert command.end() == 0
    assert "accuracy" in command.out
    assert max(map(len, command.out.splitlines())) <= 60


def test_mistakes_have_one_message(tmp_path, launcher):
    tell(tmp_path / "runs" / "r1")
    for words, code, said in (
        (("report", "nothing"), 3, "no run with the id, name or path 'nothing'"),
        (("report", "r1", "--text", "--json"), 2, "expected one of --out, --text and --json"),
        (
            ("report", "r1", "--out", "no/such/folder.html"),
            1,
            "no/such/folder.html: No such file or directory",
        ),
        (
            ("compare", "--modes", "sync,fast", "p.py"),
            2,
            "'fast' is no mode; expected some of sync,backup,async,ssp,mirrored",
        ),
    ):
        (tmp_path / "p.py").write_text("import dtrain\n")
        command = launcher.dtrain(*words)
        assert command.end() == code, command.err
        assert said in command.err
        assert len(command.err.splitlines()) == 1


def test_modes_run_one_after_the_other_and_one_that_fails_stops_no_other(tmp_path, launcher):
    (tmp_path / "program.py").write_text(PROGRAM)
    # Synchronous updates have no warm-up; and a mode wins over an option.
    words = (*ONE_EACH, "--updates", "sync", "--set", "training.warmup_steps=1", "--out", "all.html")
    command = launcher.dtrain("compare", "--json", "--modes", "sync,async", *words, "program.py")
    assert command.end() == 2
    assert "sync has failed (exit code 2)" in command.err
    said = json.loads(command.out)
    is_of("compare", said)
    lost, kept = said["modes"]
    assert (lost["mode"], lost["state"]) == ("sync", "not started")
    assert (kept["mode"], kept["run"], kept["state"], kept["steps"]) == (
        "async",
        "program-async",
        "succeeded",
        6,
    )
    assert kept["final"]["loss"] > 0
    assert said["report"] == "all.html"
    assert "evaluation" in (tmp_path / "all.html").read_text()
    spec = json.loads(next((tmp_path / "runs").glob("*program-async*/spec.json")).read_text())
    assert (spec["training"]["updates"], spec["training"]["warmup_steps"]) == ("async", 1)


def test_each_mode_means_what_the_docs_say(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("cluster: {worker: 2, ps: 1}\ntraining: {updates: sync, backup_workers: 2}\n")
    found = {}
    for mode, settings in MODES.items():
        sets = [f"{key}={value}" for key, value in settings.items()]
        told = read_spec(spec, sets, {}, False, trains=True)
        training = told.training
        bound = getattr(training, "staleness_bound", None)
        found[mode] = (
            str(training.strategy),
            str(getattr(training, "updates", "")),
            getattr(training, "backup_workers", 0),
            bound,
        )
    assert found == {
        "sync": ("parameter_server", "sync", 0, None),
        "backup": ("parameter_server", "sync", 1, None),
        "async": ("parameter_server", "async", 0, None),
        "ssp": ("parameter_server", "async", 0, 3),
        "mirrored": ("multi_worker_mirrored", "", 0, None),
    }


def test_ctrl_c_ends_the_present_mode_in_order_and_reports_what_there_is(tmp_path, launcher):
    (tmp_path / "wait.sh").write_text("touch here; exec sleep 1000\n")
    command = launcher.dtrain("compare", *ONE_EACH, "--", "sh", "wait.sh")
    wait_until((tmp_path / "here").exists, "the first mode")
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 130
    assert "backup" not in command.err.replace("backup: ", "")
    assert "stopped" in command.out
    assert (tmp_path / "sh-compared.html").exists()
    assert len(list((tmp_path / "runs").iterdir())) == 1
