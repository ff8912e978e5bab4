"""Which attempt of a server that does not answer its leader asks to kill: only where no cut cable can be the reason."""

from types import SimpleNamespace

from row_by_row import every_row

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import RunSpec, WaitSection, training_section
from dtrain.messages.membership import TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.runs.files import KillRequest, RunFiles, read_record
from dtrain.strategies.parameter_server.strategy import ServersStrategy


@every_row(
    "host, silent_s, attempt",
    [
        ("127.0.0.1", 5.0, 2),
        ("10.0.0.2", 5.0, None),
        ("10.0.0.2", 60.0, None),  # its host may be cut off for as long
        ("10.0.0.2", 80.0, 2),  # its launcher has not given it up, so its host is heard
    ],
)
def test_the_attempt_that_answered_last_is_asked_for(tmp_path, host, silent_s, attempt):
    cluster = ClusterSpec.from_lists(chief=[f"{host}:1"], ps=[f"{host}:2"])
    under_a_launcher = WaitSection(start_s=60.0, server_s=60.0 + 60.0)  # a launcher adds the one to the other
    spec = RunSpec(training=training_section(), wait=under_a_launcher)
    chief = TaskAssignment(TaskId(Role.CHIEF, 0), cluster, spec, "run", run_dir=tmp_path, launched=True)
    strategy = ServersStrategy(chief)
    status = TaskStatus("ps:0", 1, "there", attempt=2)
    strategy._heartbeats = [SimpleNamespace(reply=SimpleNamespace(statuses=(status,)))]
    strategy._server_is_silent(0, silent_s)
    request = read_record(RunFiles(tmp_path).kill(TaskId(Role.PS, 0)), KillRequest)
    assert request is not None
    assert request.attempt == attempt
