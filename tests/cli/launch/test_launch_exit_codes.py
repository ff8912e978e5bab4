"""What `dtrain launch` ends with, and that nothing is left when it does."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import SOURCES

SMALL = ("--ps", "1", "--no-evaluator", "--workers", "1")


@pytest.fixture(scope="module", autouse=True)
def hanging(early):
    """A launch of which the worker never says that it is up."""
    program = early.program(
        """
        def the_place_where_it_hangs():
            forever()

        status("running" if task == "chief:0" else "starting", waiting_for="ps:7")
        the_place_where_it_hangs()
        """
    )
    launch = early.start(*SMALL, "--set", "wait.start_s=8", program)
    launch.wait_for(lambda: launch.task("worker:0")["pid"], "the worker")
    masks = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{launch.fork_server()}/status").read_text())
    assert int(masks[1], 16) >> (signal.SIGUSR2 - 1) & 1, (
        "a task without a log would write its stacks to the terminal"
    )
    return launch


def test_the_leaders_success_is_the_runs(launcher):
    """By both rules of success, in launches of the same time."""
    program = launcher.program(
        """
        status(step=3)
        if task == "worker:0":
            wait_for(run_dir / "chief-is-done")
        print("hello from", task, sys.argv[1:])
        if task == "chief:0":
            (run_dir / "chief-is-done").touch()
        """
    )
    rules = ((), ("--set", "success=all_workers"))
    for launch in [launcher.start(*SMALL, *rule, program, "--epochs", "3") for rule in rules]:
        assert launch.end() == 0, launch.err
        assert sorted(launch.out.splitlines()) == [
            "chief:0 | hello from chief:0 ['--epochs', '3']",
            "worker:0 | hello from worker:0 ['--epochs', '3']",
        ]
        assert {task["state"] for task in launch.record()["tasks"]} == {"succeeded"}
        assert launch.record()["state"] == "succeeded"
        launch.wait_gone()


def test_those_who_never_end_are_stopped_and_count_as_succeeded(launcher):
    launch = launcher.start(
        "--ps", "1", "--workers", "1", "--", "sh", "-c", 'test "$RANK" = 0 && exit 0; exec sleep 1000'
    )
    assert launch.end() == 0, launch.err
    assert {task["state"] for task in launch.record()["tasks"]} == {"succeeded"}
    told = [event["task"] for event in launch.events("told to stop")]
    assert told == ["worker:0", "ps:0"]
    launch.wait_gone()


def test_a_failed_task_gives_the_run_its_exit_code(launcher):
    """Each of four, in launches of the same time."""
    ends = (
        ("sys.exit(7)", 7, "exited with code 7"),
        ("raise ValueError('seven')", 1, "ValueError: seven"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL (signal 9)"),
        ("sys.modules.pop('dtrain.strategies.interface')", 1, "ended without ever having called dtrain"),
    )
    launches = []
    for number, (end, _, _) in enumerate(ends):
        body = (
            f"status()\nif task == 'chief:0':\n    print('its last words')\n    {end}\nelse:\n    forever()\n"
        )
        program = launcher.program(body, f"program_{number}.py")
        launches.append(launcher.start(*SMALL, "--set", "restart.chief.policy=never", program))
    for launch, (_, code, message) in zip(launches, ends, strict=True):
        assert launch.end() == code, launch.err
        assert launch.record()["exit_code"] == code
        assert launch.record()["state"] == "failed"
        assert message in launch.record()["failure"]["message"]
        assert message in launch.err
        assert launch.err.rstrip().endswith("╯"), "the box is the last thing on stderr"
        kept = json.loads((launch.run_dir / "tasks/chief-0/attempt-0/failure.json").read_text())
        assert kept["last_lines"][0] == "its last words"
        assert min(kept["monotonic_s"], kept["peak_memory_bytes"]) > 0
        launch.wait_gone()


def test_a_foreign_command_that_fails(launcher):
    launch = launcher.start(*SMALL, "--", "sh", "-c", "echo it broke; sleep 1000 & exit 9")
    assert launch.end() == 9
    assert "it broke" in launch.err
    launch.wait_gone()


def test_a_signal_stops_in_order(launcher):
    """Each of four, in launches of the same time."""
    program = launcher.program(
        """
        status()
        try:
            forever()
        except SystemExit:
            print(task, "leaves", flush=True)
            raise
        """
    )
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    launches = {number: launcher.start("--ps", "1", program) for number in numbers}
    for number, launch in launches.items():
        launch.wait_running()
        launch.send(number)
    in_order = ["worker:0", "worker:1", "evaluator:0", "chief:0", "ps:0"]
    for number, launch in launches.items():
        assert launch.end() == 128 + number
        assert launch.record()["state"] == "stopped"
        assert [event["task"] for event in launch.events("told to stop")] == in_order
        assert launch.out.count("leaves") == 4
        launch.wait_gone()


def test_a_second_signal_kills_now(launcher):
    program = launcher.program("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nstatus()\nforever()\n")
    launch = launcher.start(*SMALL, "--grace", "1000", program)
    launch.wait_running()
    launch.send(signal.SIGINT)
    launcher_stops = launch.process.stderr
    assert any("SIGINT" in line for line in iter(launcher_stops.readline, ""))
    launch.send(signal.SIGINT)
    assert launch.end() == 130
    launch.wait_gone()


def test_timeout(launcher):
    launch = launcher.start(*SMALL, "--timeout", "0.5", "--", "sleep", "1000")
    assert launch.end() == 124
    assert "not finished within 0.5 s (--timeout)" in launch.err
    assert re.search(r"worker:0 +(starting|running)", launch.err), "where each task stood"
    launch.wait_gone()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.py",), "missing.py"),
        (("--", "a-command-that-is-missing"), "a-command-that-is-missing"),
        (("--set", "cluster.wroker=2", "program.py"), "worker"),
        (("bad.yaml", "program.py"), "bad.yaml"),
        ((), ""),
    ],
)
def test_a_wrong_command_line_starts_nothing(launcher, words, message):
    launcher.program("print('started')")
    (launcher.folder / "bad.yaml").write_text("cluster: {worker: many}\n")
    launch = launcher.start(*words)
    assert launch.end() == 2
    assert message in launch.err
    assert "Traceback" not in launch.err
    assert launch.out == ""
    launch.wait_gone()


def test_two_launches_cannot_share_a_directory(launcher):
    program = launcher.program("status()\nforever()\n")
    first = launcher.start(*SMALL, "--run-dir", "shared", program)
    first.run_dir = launcher.folder / "shared"
    first.wait_running()
    second = launcher.start(*SMALL, "--run-dir", "shared", program)
    assert second.end() == 2
    assert "in use by another launch" in second.err
    first.send(signal.SIGTERM)
    assert first.end() == 143


def test_the_run_directory_is_private_and_keeps_the_secret(launcher):
    program = launcher.program(
        "status()\n"
        "from dtrain.process.private_variables import own_environment\n"
        "secret = own_environment()['DTRAIN_SECRET']\n"
        "print(secret, secret in str(os.environ) + open('/proc/self/environ').read())\n"
    )
    launch = launcher.start(*SMALL, "--set", "checkpoint.remote=memory://user:pass@a/b", program)
    assert launch.end() == 0
    assert (launch.run_dir.stat().st_mode & 0o777) == 0o700
    secret, seen = launch.log("chief:0").split()
    assert len(secret) >= 32
    assert seen == "False"
    kept = [path.read_bytes() for path in launch.run_dir.rglob("*.json*")]
    assert not [text for text in kept if secret.encode() in text or b"user:pass" in text]
    assert sorted(folder.name for folder in (launch.run_dir / "tasks").iterdir()) == [
        "chief-0",
        "ps-0",
        "worker-0",
    ]


def test_a_run_goes_on_in_its_directory_only_when_asked_to(launcher):
    program = launcher.program("status()\nprint('attempt', attempt, os.environ['DTRAIN_RUN_ID'])\n")
    alone = ("--strategy", "single")
    words = ("--runs-dir", "runs", "--run-dir", "mine", *alone)
    nothing = launcher.start("--run-dir", "empty", "--resume", *alone, program)
    first = launcher.start(*words, "--name", "by-hand", program)
    assert first.end() == 0, first.err
    run_id = first.out.split()[-1]

    refused = launcher.start(*words, program)
    assert refused.end() == 2
    assert "--resume" in refused.err

    for reference in (["--run-dir", "mine", "--resume"], ["--resume", run_id], ["--resume", "by-hand"]):
        resumed = launcher.start(
            "--runs-dir", "runs", *reference, *alone, program, run_dir=launcher.folder / "mine"
        )
        assert resumed.end() == 0, resumed.err
        assert run_id in resumed.out
        assert {task["restarts"] for task in resumed.record()["tasks"]} == {0}
        assert resumed.record()["name"] == "by-hand"
    assert "chief:0 | attempt 3" in resumed.out
    assert "attempt 0" in resumed.log("chief:0", 0)
    assert nothing.end() == 3


def test_too_few_open_files_are_said_before_anything_starts(launcher):
    program = launcher.program("print('started')")
    words = ["-m", "dtrain_cli.main", "launch", "--workers", "200", program]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", sys.executable, *words],
        cwd=launcher.folder,
        env={**os.environ, "PYTHONPATH": SOURCES, "DTRAIN_RUNS_DIR": str(launcher.folder / "runs")},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert "ulimit" in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_start_timeout_names_whom_it_waited_for(hanging):
    assert hanging.end() == 125
    assert re.search(r"waiting \d s for .*worker:0", hanging.err)
    assert "worker:0 (waits for ps:7)" in hanging.err
    assert "not started in time" in hanging.err
    assert not re.search(r"(chief|worker|ps):0 failed", hanging.err), "no task has failed"
    shown = " ".join(hanging.err.replace("│", " ").split())
    assert re.search(r'worker:0 starting, waits for ps:7, at "program.py", line \d+ in forever', shown)
    assert hanging.record()["failure"]["task"] == "launcher"
    assert "the_place_where_it_hangs" in hanging.log("worker:0"), "where it hangs is in its log"
    assert "the_place_where_it_hangs" not in hanging.log("chief:0") + hanging.out
    hanging.wait_gone()
