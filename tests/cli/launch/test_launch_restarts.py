"""Restarts: which task is started again, how often, and where."""

import json

from launching import wait_until

SMALL = ("--ps", "1", "--no-evaluator", "--workers", "1")
QUICK = ("--set", "restart.worker.backoff_s=0.1")


def test_a_worker_killed_by_a_signal_comes_back_at_its_address(launcher):
    program = launcher.program(
        """
        print(os.environ["TF_CONFIG"], flush=True)
        if task == "worker:0":
            if attempt < 2:
                subprocess.Popen(["sleep", "1001"])
                os.kill(os.getpid(), signal.SIGKILL)
            status()
            (run_dir / "go").touch()
        else:
            status()
            wait_for(run_dir / "go")
        """
    )
    launch = launcher.start(*SMALL, *QUICK, program)
    assert launch.end() == 0, launch.err
    assert launch.task("worker:0") | {"address": ""} == launch.task("worker:0") | {
        "address": "",
        "restarts": 2,
        "attempt": 2,
    }
    configs = {launch.log("worker:0", attempt) for attempt in range(3)}
    assert len(configs) == 1, "every attempt was told the same address"
    assert launch.out.count("worker:0 | {") == 3
    for attempt in range(2):
        failure = json.loads((launch.run_dir / f"tasks/worker-0/attempt-{attempt}/failure.json").read_text())
        assert failure["message"] == "killed by SIGKILL (signal 9)"
        assert failure["peak_memory_bytes"] > 0
    assert "restarting in 0.1 s (1 of 3)" in launch.err
    assert "restarting in 0.2 s (2 of 3)" in launch.err
    assert not launch.pids()


def test_the_group_is_dead_before_the_successor_starts(launcher):
    program = launcher.program(
        """
        if task == "chief:0":
            status()
            wait_for(run_dir / "go")
            sys.exit()
        if attempt == 0:
            child = subprocess.Popen(["sleep", "1001"])
            (run_dir / "child").write_text(str(child.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        status()
        stat = Path("/proc", (run_dir / "child").read_text(), "stat")
        alive = stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
        print("alive" if alive else "dead")
        (run_dir / "go").touch()
        """
    )
    launch = launcher.start(*SMALL, *QUICK, program)
    assert launch.end() == 0, launch.err
    assert launch.log("worker:0", 1) == "dead\n"


def test_restarts_are_used_up(launcher):
    program = launcher.program("status()\nif task == 'chief:0':\n    forever()\nos.abort()\n")
    launch = launcher.start(
        *SMALL, *QUICK, "--set", "restart.worker.max=1", "--set", "success=all_workers", program
    )
    assert launch.end() == 134
    assert launch.task("worker:0")["restarts"] == 1
    assert launch.record()["failure"]["attempt"] == 1
    assert not launch.pids()


def test_an_exit_code_below_128_is_final(launcher):
    program = launcher.program(
        """
        status()
        if task == "worker:0":
            sys.exit(5)
        wait_for(run_dir / "go")
        """
    )
    launch = launcher.start(*SMALL, program)
    wait_until(lambda: launch.task("worker:0")["state"] == "failed")
    (launch.run_dir / "go").touch()
    assert launch.end() == 0, "a parameter-server run survives a worker that failed for good"
    assert "worker:0 has failed: exited with code 5; training continues without it" in launch.err


def test_a_foreign_command_is_not_restarted_unless_the_spec_says_so(launcher):
    script = 'test "$RANK" = 0 && exec sleep 1000; kill -9 $$'
    asked = (*QUICK, "--set", "restart.worker.max=1")
    launches = [launcher.start(*SMALL, "--ps", "0", *more, "--", "sh", "-c", script) for more in ((), asked)]
    for launch, restarts in zip(launches, (0, 1), strict=True):
        assert launch.end() == 137
        assert launch.task("worker:0")["restarts"] == restarts


def test_simulated_kill_and_pause_fire_once(launcher):
    program = launcher.program(
        """
        for step in range(1000):
            status(step=step + 100 * attempt)
            time.sleep(0.01)
            if (run_dir / "go").exists() or task == "worker:0" and attempt == 1:
                break
        if task == "worker:0":
            (run_dir / "go").touch()
        """
    )
    launch = launcher.start(
        *SMALL, *QUICK,
        "--set", "simulate.kill=[{task: worker:0, at_step: 20}]",
        "--set", "simulate.pause=[{task: chief:0, at_s: 0.1, for_s: 0.2}]",
        program,
    )  # fmt: skip
    assert launch.end() == 0, launch.err
    faults = {(event["task"], event["signal"]) for event in launch.events("fault")}
    assert faults == {("worker:0", "SIGKILL"), ("chief:0", "SIGSTOP"), ("chief:0", "SIGCONT")}
    assert launch.task("worker:0")["restarts"] == 1


def test_an_evaluator_that_fails_is_told_of_and_survived(launcher):
    program = launcher.program(
        """
        status()
        if task == "evaluator:0":
            raise RuntimeError("no test data")
        wait_for(run_dir / "go")
        """
    )
    launch = launcher.start("--ps", "1", "--workers", "0", program)
    wait_until(lambda: launch.task("evaluator:0")["state"] == "failed")
    (launch.run_dir / "go").touch()
    assert launch.end() == 0
    assert "evaluator:0 has failed: RuntimeError: no test data; evaluation will be missing" in launch.err
