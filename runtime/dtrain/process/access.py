"""The right of a task to start: the secret of its run, or the word that it may do without one."""

from pathlib import Path

from dtrain.cluster import ClusterSpec
from dtrain.cluster.loopback import is_loopback
from dtrain.config import SecuritySection
from dtrain.errors import SpecError
from dtrain.process.secret import read_secret


def secret_in_file(security: SecuritySection) -> str | None:
    """Return the secret in `security.secret_file`; None where no file is named.

    Raises:
        SpecError: the file cannot be used; see `read_secret`.
    """
    file = security.secret_file
    return None if file is None else read_secret(Path(file).expanduser())


def check_access(
    cluster: ClusterSpec, secret: str | None, security: SecuritySection, *, by_command: bool
) -> None:
    """Make sure that strangers on a network cannot talk to the tasks of a cluster.

    Args:
        cluster: the addresses.
        secret: of the run.
        security: of the spec, with what the environment says.
        by_command: whether a command of dtrain starts the task, which has options; else plain Python does.

    Raises:
        SpecError: an address is not loopback, there is no secret, and nothing says that none is needed.
    """
    if secret is not None or security.insecure:
        return
    tasks = list(cluster.tasks())
    for task in tasks if len(tasks) > 1 else ():
        address = cluster.address(task)
        if address is not None and not is_loopback(address):
            give, trust = (
                ("the same --secret-file FILE", "--insecure")
                if by_command
                else ('DTRAIN_SECRET="$(cat FILE)"', "DTRAIN_INSECURE=1")
            )
            raise SpecError(
                f"{task} is at {address}, where every process of the network could read and change the "
                f"model: make a secret with `dtrain secret FILE` and give every task {give}, or say {trust} "
                "if you trust that network"
            )
