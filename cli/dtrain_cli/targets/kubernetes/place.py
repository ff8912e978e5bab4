"""The place of a run on Kubernetes, as its run directory remembers it."""

from dataclasses import dataclass

from dtrain.cluster import Role, TaskId
from dtrain.config.choices import On
from dtrain.errors import RunError
from dtrain.runs.files import RunFiles
from dtrain.runs.json_file import read_record
from dtrain_cli.targets.kubernetes.run import KubernetesRun


@dataclass(frozen=True)
class KubernetesPlace:
    """The facts of a run that a later command needs.

    Attributes:
        engine: that owns the tasks. Records of others lie in the same file and have other fields.
        name: of all its objects.
        context: of kubectl; None: its current one.
        namespace: likewise.
        jobset: whether its tasks are one JobSet.
        leader: the task that leads.
        directory: the run directory in the leader's pod; None for a foreign command.
        stop_s: how long its tasks may take to stop.
    """

    engine: On
    name: str = ""
    context: str | None = None
    namespace: str | None = None
    jobset: bool = False
    leader: str = ""
    directory: str | None = None
    stop_s: float = 0.0

    @property
    def leading(self) -> TaskId:
        """Return the task that leads."""
        return TaskId.parse(self.leader)


def place_of(run: KubernetesRun, stop_s: float) -> KubernetesPlace:
    """Return the place of a run that is about to start."""
    kubernetes = run.spec.kubernetes
    directory = run.run_directory if run.leader is Role.CHIEF else f"{run.run_directory}/{run.leader}-0"
    return KubernetesPlace(
        On.KUBERNETES,
        run.name,
        kubernetes.context,
        kubernetes.namespace,
        run.jobset,
        str(TaskId(run.leader, 0)),
        None if run.foreign else directory,
        stop_s,
    )


def read_place(files: RunFiles) -> KubernetesPlace | None:
    """Return where the tasks of a run are on Kubernetes; None for a run of a launcher.

    Raises:
        RunError: the record is damaged.
    """
    try:
        found = read_record(files.where, KubernetesPlace)
    except OSError as error:
        raise RunError(f"{files.where} cannot be read: {error.strerror}") from None
    return found if found is not None and found.engine is On.KUBERNETES else None
