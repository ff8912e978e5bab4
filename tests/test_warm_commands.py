"""A command that is forked, and the task that it becomes, find themselves as those that Python has started."""

import json
import os
import signal
import subprocess
import sys

import pytest
from clusters.hand import HandCluster
from warm_commands import COLD

FACTS = """
import json, os, signal, sys, types
sys.modules["dtrain.strategies.interface"] = types.SimpleNamespace(was_used=lambda: True, close_default=lambda error: None)
streams = [(s.encoding, s.errors, s.line_buffering, s.write_through, s.mode, s.name) for s in (sys.stdin, sys.stdout, sys.stderr)]
print(json.dumps({
    "words": sys.argv, "path": sys.path, "folder": os.getcwd(), "name": __name__, "streams": streams,
    "environment": dict(os.environ), "parent": os.getppid(), "session": os.getsid(0), "group": os.getpgid(0),
    "files": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in ("0", "1", "2")}, "open": sorted(os.listdir("/proc/self/fd")),
    "signals": [str(signal.getsignal(number)).split(" at ")[0] for number in range(1, 32)], "mask": str(signal.pthread_sigmask(0, [])),
    "umask": os.umask(0), "said": sys.stdin.read(), "threads": len(os.listdir("/proc/self/task")),
}))
print("an error", file=sys.stderr)
sys.exit(7)
"""


def ended(folder, program, cold, **more):
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "A_WORD": "caf\udcff", **({COLD: "1"} if cold else {})}
    command = [sys.executable, "-m", "dtrain.task", "program.py", "--steps", "3"]
    return subprocess.run(command, cwd=folder, env=environment, text=True, timeout=60, check=False, **more)


def test_a_forked_command_finds_what_one_that_is_started_finds(tmp_path, monkeypatch):
    monkeypatch.delenv(COLD, raising=False)
    found = []
    for cold in (True, False):
        with open(tmp_path / "err", "w+") as err:
            done = ended(tmp_path, FACTS, cold, input="hello", stdout=subprocess.PIPE, stderr=err)
            err.seek(0)
            facts = json.loads(done.stdout)
            assert facts["environment"].pop(COLD, None) == ("1" if cold else None)
            assert facts["files"].pop("0").startswith("pipe:")
            assert facts["files"].pop("1").startswith("pipe:")
            found.append({**facts, "err": err.read(), "code": done.returncode})
    for name in found[0]:
        assert found[1][name] == found[0][name], name
    assert (found[1]["parent"], found[1]["said"], found[1]["code"]) == (os.getpid(), "hello", 7)


@pytest.mark.parametrize("cold", [False, True])
def test_a_signal_that_kills_it_is_its_end(tmp_path, monkeypatch, cold):
    monkeypatch.delenv(COLD, raising=False)
    program = f"import os\nos.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    assert ended(tmp_path, program, cold).returncode == -signal.SIGKILL


TASK_FACTS = """
import json, os, signal, sys
import threadpoolctl
import dtrain as dt

dt.get_strategy()
streams = (sys.stdin, sys.stdout, sys.stderr)
print(json.dumps({
    "name": [__name__, __file__, sys.argv, os.getcwd(), sys.path[0]],
    "environment": {name: value for name, value in os.environ.items() if not {*name.split("_")} & {"TEST", "FORK", "RUN", "SPEC", "CONFIG"}},
    "signals": [(number, str(signal.getsignal(number)).split(" at 0x")[0]) for number in sorted(signal.valid_signals())],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "files": sorted(os.readlink(f"/proc/self/fd/{name}").split(":")[0] for name in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{name}")),
    "streams": [(each.fileno(), each.name, each.mode, each.encoding, each.errors, each.line_buffering,
                 each.write_through) for each in streams],
    "threads": [found["num_threads"] for found in threadpoolctl.threadpool_info()],
    "umask": os.umask(0o22),
    "session": os.getsid(0),
    "group": os.getpgid(0),
    "limits": open("/proc/self/limits").read(),
    "executed": [sys.executable, os.path.exists(f"/proc/{os.getpid()}")],
}), flush=True)
"""


def test_a_forked_task_sees_what_one_sees_that_python_has_started(launcher, tmp_path):
    (tmp_path / "program.py").write_text(TASK_FACTS)
    seen = []
    for warm in (True, False):
        cluster = HandCluster(launcher, warm=warm, chief=1)
        spec = cluster.spec(training={"strategy": "mirrored"})
        command = cluster.start("chief:0", "--spec", spec, "program.py", "a word", environment={"A": "word"})
        cluster.succeed()
        seen.append(json.loads(command.out))
    forked, executed = seen
    for what in executed:
        assert forked[what] == executed[what], what
