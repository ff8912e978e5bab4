"""A task that the kernel kills for memory: a real kill, in a control group with a limit."""

import os
import time
from pathlib import Path

import pytest

GROUPS = "DTRAIN_TEST_CGROUP"
LIMIT_BYTES = 400 << 20
EAT = "eaten = []\nwhile True:\n    eaten.append(bytearray(b'x') * (1 << 20))\n"
ALONE = ("--strategy", "single", "--set", "restart.chief.policy=never")


@pytest.fixture
def limited(tmp_path):
    """A command that runs another in a control group of its own, with a limit."""
    if GROUPS not in os.environ:
        pytest.skip(
            f"{GROUPS} does not name a control group below which groups with a memory limit may be made"
        )
    group = Path(os.environ[GROUPS]) / f"dtrain-{os.getpid()}"
    group.mkdir()
    limit = group / "memory.max"
    (limit if limit.exists() else group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    if (swap := group / "memory.swap.max").exists():
        swap.write_text("0")
    yield ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    deadline_s = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    group.rmdir()


@pytest.mark.parametrize("kind", ["program", "command", "shell"])
def test_the_kill_is_recognised_and_said(launcher, limited, kind):
    (launcher.folder / "eat.py").write_text(EAT)
    words = {
        "program": (launcher.program(f"status()\n{EAT}"),),
        "command": ("--", "python3", "eat.py"),
        "shell": ("--", "sh", "-c", "python3 eat.py; exit $?"),
    }
    launch = launcher.start(*ALONE, *words[kind], wrapper=limited)
    assert launch.end() == 137, launch.err
    failure = launch.record()["failure"]
    assert failure["task"] == "chief:0"
    said = (
        "exited with code 137 (128 + SIGKILL); the kernel has killed what it ran"
        if kind == "shell"
        else "killed by the kernel"
    )
    assert failure["message"].startswith(f"{said} for memory (peak 0.")
    assert failure["peak_memory_bytes"] > LIMIT_BYTES / 2
    assert said in launch.err.rpartition("╭")[2], "the box"
    assert not launch.pids()
