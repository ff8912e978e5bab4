"""The end of a worker that has joined, when its run's launcher is no longer there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import RunSpec
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.files import RunFiles, RunRecord, write_record
from dtrain.runs.states import RunState
from dtrain_cli.launch.join import Joining
from dtrain_cli.launch.joining_worker import JoiningWorker

CLUSTER = ClusterSpec.from_lists(chief=["127.0.0.1:1"], ps=["127.0.0.1:2"])
PROGRAM = "import time; time.sleep(600)\n"


def join(folder, state, exit_code):
    """Own a worker of a run in this state whose launcher has ended; the exit code."""
    (folder / "sleeps.py").write_text(PROGRAM)
    files = RunFiles(folder / "run")
    files.create()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    keeper = RunRecord("r-1", "digits", launcher_pid=ended.pid, launcher_started=1.0)
    keeper.state, keeper.exit_code = state, exit_code
    write_record(files.run, keeper)
    worker = TaskId(Role.WORKER, 1)
    place = TaskAssignment(
        worker, CLUSTER, RunSpec(), run_id="r-1", run_dir=files.directory, secret="s" * 16, launched=True
    )
    return JoiningWorker(Joining(place, "r-1", keeper), folder / "sleeps.py", ()).run()


@pytest.mark.parametrize(
    ("state", "run_code", "code", "said"),
    [
        (RunState.STOPPED, 143, 143, "run r-1 has stopped, and this worker ends with it"),
        (RunState.SUCCEEDED, 0, 0, "run r-1 has succeeded, and this worker ends with it"),
        (RunState.RUNNING, None, 137, "the launcher of run r-1 has died, and its tasks with it"),
    ],
)
def test_a_worker_ends_as_its_run_has(tmp_path, state, run_code, code, said):
    """It came as the run ended: the launcher had looked for joined workers before."""
    command = subprocess.run(
        [sys.executable, __file__, tmp_path, state, json.dumps(run_code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert command.returncode == code, command.stderr
    assert command.stderr.splitlines()[-1] == f"dtrain: worker:1: {said}"


if __name__ == "__main__":
    sys.exit(join(Path(sys.argv[1]), RunState(sys.argv[2]), json.loads(sys.argv[3])))
