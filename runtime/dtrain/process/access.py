"""The right of a task to start: the secret of its run, or the word that it may do without one."""

from pathlib import Path

from dtrain.cluster import ClusterSpec
from dtrain.cluster.loopback import is_loopback
from dtrain.config import SecuritySection
from dtrain.errors import SpecError
from dtrain.process.secret import read_secret, users_secret


def secret_in_file(security: SecuritySection) -> str | None:
    """Return the secret in `security.secret_file`; None where no file is named.

    Raises:
        SpecError: the file cannot be used; see `read_secret`.
    """
    file = security.secret_file
    return None if file is None else read_secret(Path(file).expanduser())


def proven_secret(
    cluster: ClusterSpec, given: str | None, security: SecuritySection, *, by_command: bool
) -> str | None:
    """Return the secret that a task proves, so that strangers cannot talk to the tasks of its cluster.

    Args:
        cluster: the addresses.
        given: the secret that the spec, an option or the environment gives.
        security: of the spec, with what the environment says.
        by_command: whether a command of dtrain starts the task, which has options; else plain Python does.

    Returns:
        The given one; without one, on loopback, the secret of this user. None: the user says that none is
        needed, or the task is alone.

    Raises:
        SpecError: there is no secret, nothing says that none is needed, and an address is not loopback, or
            this user's secret cannot be used.
    """
    tasks = list(cluster.tasks())
    if given is not None or security.insecure or len(tasks) < 2:
        return given
    for task in tasks:
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
    return users_secret()
