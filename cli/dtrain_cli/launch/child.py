"""A launch as a child of another command, such as `tune`, `demo` or a campaign: it never outlives that one.

The kernel kills the child with its parent, and its tasks end with it. It has a session of its own, so Ctrl-C
in the terminal reaches the parent only.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dtrain.process import life_line
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox

LOOK_S = 0.1
STOP_S = 40.0
"""From the order to stop to SIGKILL of a launch, which stops its tasks in `wait.grace_s`, 10 s by default."""


def start_child(words: Sequence[str], more: Mapping[str, str], out: Any, err: Any) -> subprocess.Popen[bytes]:
    """Start a command with `more` variables in its environment; see the module for how it ends."""
    return subprocess.Popen(
        words,
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
        preexec_fn=partial(life_line.die_with_parent, os.getpid()),
    )


def start_launch(
    words: Sequence[str], more: Mapping[str, str], out: Any, err: Any = subprocess.STDOUT
) -> subprocess.Popen[bytes]:
    """Start `dtrain` with these words; what it prints goes to `out` and `err` (None: as this one's)."""
    return start_child([sys.executable, "-P", "-m", "dtrain_cli.main", *words], more, out, err)


def see_to_its_end(
    words: Sequence[str], log: Path, signals: SignalInbox, look: Callable[[], None]
) -> tuple[int, int | None]:
    """Run one launch, and call `look` every tenth of a second and once after its end.

    Return its exit code, and the signal that this process has got meanwhile: the launch stops its tasks in
    order then, and a second signal kills it.
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the inbox
    stopped, kill_s = None, float("inf")
    with log.open("wb") as output:
        process = start_launch(words, {}, output)
    try:
        while process.poll() is None:
            select.select([signals], [], [], LOOK_S)
            for number in signals.read():
                if number in STOP_SIGNALS:
                    kill_s = time.monotonic() + (STOP_S if stopped is None else 0)
                    stopped = stopped or number
                    process.send_signal(signal.SIGTERM)
            if time.monotonic() >= kill_s:
                process.kill()
            look()
    finally:
        process.kill()
        process.wait()
    look()
    return process.returncode, stopped
