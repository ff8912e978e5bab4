"""A command that is forked finds itself as one that Python has started."""

import json
import os
import signal
import subprocess
import sys

import pytest
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
