"""Tasks of a cluster within the process of its chief: see `dtrain.distribute.servers`."""

import socket
import sys
import threading

from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.errors import DtrainError, SpecError
from dtrain.process.assignment import TaskAssignment
from dtrain.process.private_variables import own_environment

LOCAL_CHIEF = TaskId(Role.CHIEF, 0)
THREADS_S = 5.0
"""A program may make servers in threads: so long the strategy waits for the last of them."""

_here: dict[TaskId, "HostedTask"] = {}
"""The tasks that the program has started in threads of this process."""
_made = threading.Condition()
"""Notified of each further one."""


class HostedTask:
    """A task of which the chief's process takes care; a parameter server serves in a thread.

    Attributes:
        ended: set when it has served.
    """

    def __init__(self, task: TaskId) -> None:
        self.task = task
        self.ended = threading.Event()
        with _made:
            _here[task] = self
            _made.notify_all()

    def serve(self, assignment: TaskAssignment) -> None:
        """Serve in a thread until the run has ended."""
        from dtrain.roles.parameter_server.serving import serve  # loads grpc

        def run() -> None:
            try:
                serve(assignment)
            except DtrainError as error:
                sys.stderr.write(f"{self.task}: {error}\n")
            finally:
                self.ended.set()

        threading.Thread(target=run, name=str(self.task), daemon=True).start()


def placed(assignment: TaskAssignment) -> TaskAssignment:
    """Return this task's place; of a chief with servers in its process, that in their cluster.

    Raises:
        SpecError: another task of the cluster has no server here.
    """
    if not _here or assignment.launched:  # a launcher starts the tasks itself
        return assignment
    cluster = assignment.cluster
    others = set(cluster.tasks(Role.WORKER, Role.PS))
    with _made:
        if not _made.wait_for(lambda: others <= _here.keys(), THREADS_S):
            absent = ", ".join(map(str, sorted(others - _here.keys())))
            raise SpecError(
                f"Server: this process has those of {', '.join(map(str, _here))}; expected one for each ps "
                f"and worker of the cluster, found none for {absent}"
            )
    chief = cluster.address(LOCAL_CHIEF) or cluster.address(TaskId(Role.WORKER, 0))
    own = ClusterSpec.from_lists(chief=[chief or _free_address()], ps=cluster.servers)
    return TaskAssignment.by_hand(own, LOCAL_CHIEF, own_environment())


def _free_address() -> str:
    """Return an address for a chief whose cluster names none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def serve_for(assignment: TaskAssignment) -> None:
    """Let the parameter servers of a chief serve, which are in its process."""
    if assignment.launched:
        return
    for index in range(len(assignment.cluster.servers)):
        if (server := _here.pop(TaskId(Role.PS, index), None)) is not None:
            server.serve(replace(assignment, task=server.task))
