"""A task as its program sees it: `python -m dtrain.task`, with and without a launcher."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from launching import PRELUDE, SOURCES, wait_until

ALONE = ("--strategy", "single")
USED = """import sys, types
sys.modules["dtrain.strategies.interface"] = types.SimpleNamespace(was_used=lambda: True, close_default=lambda error: None)
"""
TF_CONFIG = json.dumps({"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}})


def run_task(folder: Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program as `dtrain worker` would, without a launcher."""
    (folder / "program.py").write_text(USED + textwrap.dedent(body))
    return subprocess.run(
        [sys.executable, "-m", "dtrain.task", "program.py", "--steps", "3"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": SOURCES, **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def failure(folder: Path) -> dict:
    return json.loads((folder / "run/tasks/worker-0/attempt-0/failure.json").read_text())


def test_the_program_runs_as_python_would_run_it(tmp_path):
    (tmp_path / "sibling.py").write_text("value = 42\n")
    done = run_task(
        tmp_path,
        """
        import inspect, sibling
        print(__name__, __file__, sys.argv, sibling.value, sys.modules["__main__"].sibling is sibling)
        class Here: pass
        print(Here.__module__, inspect.getsource(Here).strip())
        """,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "__main__ program.py ['program.py', '--steps', '3'] 42 True",
        "__main__ class Here: pass",
    ]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("end", "code", "kind", "message"),
    [
        ("raise ValueError('seven')", 1, "exception", "ValueError: seven"),
        ("sys.exit(3)", 3, "exit", "exited with code 3"),
        ("sys.exit('too bad')", 1, "exit", "too bad"),
        ("raise KeyboardInterrupt", 130, "signal", "interrupted (SIGINT)"),
        ("import os; os.kill(os.getpid(), 15)", 143, "signal", "asked to stop (SIGTERM)"),
        (
            "import dtrain.errors as e; raise e.PeerLostError('ps:0 went away')",
            1,
            "peer_lost",
            "PeerLostError: ps:0 went away",
        ),
        (
            "import dtrain.errors as e; raise e.WaitTimeoutError('ps:0: 5 s')",
            1,
            "peer_lost",
            "WaitTimeoutError: ps:0: 5 s",
        ),
        ("import dtrain.errors as e; raise e.SpecError('bad')", 2, "exception", "SpecError: bad"),
        ("1 = 2", 1, "exception", "SyntaxError: cannot assign to literal"),
    ],
)
def test_every_failure_has_its_exit_code_and_a_record(tmp_path, end, code, kind, message):
    done = run_task(tmp_path, end, TF_CONFIG=TF_CONFIG, DTRAIN_RUN_DIR=str(tmp_path / "run"))
    assert done.returncode == code, done.stderr
    record = failure(tmp_path)
    assert (record["task"], record["kind"], record["exit_code"]) == ("worker:0", kind, code)
    assert record["message"].startswith(message)
    assert record["monotonic_s"] > 0
    assert record["peak_memory_bytes"] > 0
    assert "dtrain/task/" not in done.stderr + (record["traceback"] or ""), "only the user's lines are shown"


def test_a_failure_is_recorded_also_when_nobody_can_be_told(tmp_path):
    body = "import os; os.close(1); os.close(2); import dtrain.errors as e; raise e.SpecError('bad')"
    done = run_task(tmp_path, body, TF_CONFIG=TF_CONFIG, DTRAIN_RUN_DIR=str(tmp_path / "run"))
    assert done.returncode == 2
    assert failure(tmp_path)["message"] == "SpecError: bad"


def test_success_leaves_no_record(tmp_path):
    done = run_task(tmp_path, "sys.exit(0)", TF_CONFIG=TF_CONFIG, DTRAIN_RUN_DIR=str(tmp_path / "run"))
    assert done.returncode == 0
    assert not (tmp_path / "run").exists()


def test_an_order_to_stop_that_comes_while_the_task_ends_is_no_error(tmp_path):
    body = (
        "import atexit, os\natexit.register(print, 'closed')\natexit.register(lambda: "
        "os.kill(os.getpid(), 15))"
    )
    done = run_task(tmp_path, body, TF_CONFIG=TF_CONFIG, DTRAIN_RUN_DIR=str(tmp_path / "run"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def test_a_program_that_never_calls_dtrain_is_told_so(tmp_path):
    done = run_task(tmp_path, "del sys.modules['dtrain.strategies.interface']\nsys.exit()")
    assert done.returncode == 1
    assert "ended without ever having called dtrain" in done.stderr


def test_a_wrong_tf_config_is_one_message(tmp_path):
    done = run_task(tmp_path, "", TF_CONFIG="{")
    assert done.returncode == 2
    assert "TF_CONFIG" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_program_is_one_message(tmp_path):
    command = [sys.executable, "-m", "dtrain.task", "missing.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": SOURCES}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "cannot read the program missing.py: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_users_own_excepthook_is_called(tmp_path):
    done = run_task(
        tmp_path, "sys.excepthook = lambda kind, error, trace: print('mine:', error)\nraise ValueError('x')"
    )
    assert done.returncode == 1
    assert done.stdout == "mine: x\n"


def test_a_crash_leaves_its_stack(tmp_path):
    done = run_task(tmp_path, "import faulthandler; faulthandler._sigsegv()")
    assert done.returncode == -11
    assert 'File "program.py", line' in done.stderr


def test_a_forked_task_is_a_fresh_process_of_its_own(launcher):
    """Everything that a fork would share with its siblings, or inherit from the launcher, and must not."""
    program = launcher.program(
        """
        import random, threading
        import numpy as np
        import threadpoolctl

        status()
        own = os.getpid()
        facts = {
            "session": os.getsid(0) == own == os.getpgid(0),
            "fds": {fd.name: os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if os.path.lexists(fd)},
            "random": [random.random(), float(np.random.random())],
            "argv": sys.argv,
            "path": sys.path[0],
            "main": [__name__, sys.modules["__main__"].__file__],
            "cwd": os.getcwd(),
            "threads": [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"],
            "python_threads": [thread.name for thread in threading.enumerate()],
            "stdin": sys.stdin.read(),
            "masked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        }
        (run_dir / f"{task}.json").write_text(json.dumps(facts))
        """
    )
    launch = launcher.start("--ps", "1", "--workers", "2", "--no-evaluator", program, "--x", "1")
    assert launch.end() == 0, launch.err
    facts = {
        name: json.loads((launch.run_dir / f"{name}.json").read_text())
        for name in ("chief:0", "worker:0", "worker:1")
    }
    for name, fact in facts.items():
        assert fact["session"]
        opened = {fd: target for fd, target in fact["fds"].items() if not target.startswith("/proc")}
        log = str(launch.run_dir / "tasks" / name.replace(":", "-") / "attempt-0/output.log")
        assert (opened.pop("0"), opened.pop("1"), opened.pop("2")) == ("/dev/null", log, log)
        (life_line,) = opened.values()
        assert life_line.startswith("pipe:")
        assert fact["argv"] == ["program.py", "--x", "1"]
        assert (fact["path"], fact["cwd"]) == (str(launcher.folder), str(launcher.folder))
        assert fact["main"] == ["__main__", "program.py"]
        assert fact["threads"] == [1]
        assert fact["python_threads"] == ["MainThread", "dtrain-life-line"]
        assert fact["stdin"] == ""
        assert fact["masked"] == []
    assert len({tuple(fact["random"]) for fact in facts.values()}) == 3, "every task draws numbers of its own"

    again = launcher.start("--ps", "1", "--workers", "2", "--no-evaluator", program, "--x", "1")
    assert again.end() == 0
    assert json.loads((again.run_dir / "worker:1.json").read_text())["random"] == facts["worker:1"]["random"]


def test_the_users_thread_limit_is_kept(launcher, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    program = launcher.program(
        """
        import numpy, threadpoolctl
        status()
        print(os.environ["OMP_NUM_THREADS"], [pool["num_threads"] for pool in threadpoolctl.threadpool_info()])
        """
    )
    launch = launcher.start(*ALONE, program)
    assert launch.end() == 0
    assert launch.out == "chief:0 | 2 [2]\n"


def test_a_task_dies_with_its_group_when_the_life_line_ends(launcher):
    program = launcher.program("subprocess.Popen(['sleep', '1001'])\nstatus()\nforever()\n")
    launch = launcher.start(*ALONE, program)
    launch.wait_running()
    launch.process.kill()
    wait_until(lambda: not launch.pids())


def test_killed_output_is_complete_to_the_last_line(launcher):
    program = launcher.program("status()\nprint('the last line')\nos.kill(os.getpid(), signal.SIGKILL)\n")
    launch = launcher.start(*ALONE, "--set", "restart.chief.policy=never", program)
    assert launch.end() == 137
    assert launch.out == "chief:0 | the last line\n"


def test_what_a_program_forks_dies_of_sigterm(launcher):
    program = launcher.program(
        """
        status()
        ours = signal.getsignal(signal.SIGTERM)
        if (pid := os.fork()) == 0:
            os._exit(0 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
        print(callable(ours), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        ends = set()
        for _ in range(50):  # stopped before its first step, as a pool stops a worker that it does not need
            if (pid := os.fork()) == 0:
                while True:
                    signal.pause()
            os.kill(pid, signal.SIGTERM)
            ends.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(ends, flush=True)
        """
    )
    launch = launcher.start(*ALONE, program)
    assert launch.end() == 0, launch.err
    assert launch.out == "chief:0 | True 0\nchief:0 | {-15}\n"


def test_a_program_may_start_processes_of_its_own(launcher):
    (launcher.folder / "pools.py").write_text(
        "import multiprocessing\n"
        "def square(x):\n"
        "    return x * x\n"
        "if __name__ == '__main__':\n"
        + textwrap.indent(
            PRELUDE
            + "status()\n"
            + "for method in ('fork', 'spawn', 'forkserver'):\n"
            + "    with multiprocessing.get_context(method).Pool(2) as pool:\n"
            + "        print(method, pool.map(square, range(4)), flush=True)\n",
            "    ",
        )
    )
    launch = launcher.start(*ALONE, "pools.py")
    assert launch.end() == 0, launch.err + launch.out
    assert launch.out.splitlines() == [
        f"chief:0 | {method} [0, 1, 4, 9]" for method in ("fork", "spawn", "forkserver")
    ]
    assert not launch.pids()
