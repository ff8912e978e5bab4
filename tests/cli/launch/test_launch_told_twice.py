"""A task that has the order to stop goes on leaving when it comes a second time, from an engine or a launcher."""

import os
import signal
from pathlib import Path

from launching import wait_until

PROGRAM = """
status()
try:
    forever()
except SystemExit:
    Path(f"told-{task}").touch()
    wait_for(Path("go"))
    Path(f"left-{task}").touch()
    raise
"""


def test_a_second_order_to_stop_ends_no_task_that_is_leaving(launcher):
    launch = launcher.start("--strategy", "single", launcher.program(PROGRAM))
    launch.wait_running()
    pid = launch.task("chief:0")["pid"]
    os.kill(pid, signal.SIGTERM)  # as an engine does to every process of a job
    launch.send(signal.SIGTERM)
    told = Path(launcher.folder, "told-chief:0")
    wait_until(told.exists, "the order to arrive")
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: launch.events("told to stop"), "the launcher's own order")
    Path(launcher.folder, "go").touch()
    assert launch.end() == 143
    assert Path(launcher.folder, "left-chief:0").exists()
    launch.wait_gone()
