"""SageMaker: the variables SM_HOSTS and SM_CURRENT_HOST of its training toolkit, one task a host.

    SM_HOSTS='["algo-1", "algo-2", "algo-3"]'  SM_CURRENT_HOST=algo-2

Its names of hosts may resolve only seconds after the start. Source: ENVIRONMENT_VARIABLES.md of
aws/sagemaker-training-toolkit.
"""

from collections.abc import Mapping

from dtrain.config import ClusterSection
from dtrain.errors import SpecError
from dtrain.process.engines.json_variables import read_texts
from dtrain.process.engines.place import Place, place_by_number

HOSTS = "SM_HOSTS"
CURRENT_HOST = "SM_CURRENT_HOST"
ENGINE = "SageMaker"
PORT = 2222


def place(environment: Mapping[str, str], counts: ClusterSection | None) -> Place | None:
    """Return this task's place; None where SageMaker has not started it.

    Args:
        environment: the variables.
        counts: how many tasks of each role there are; see `place_by_number`.

    Raises:
        SpecError: the variables are not as documented, or the spec has another number of tasks.
    """
    if not environment.get(HOSTS):
        return None
    # The order of the list is not promised; the numbers in the names are.
    hosts = sorted(read_texts(environment, HOSTS), key=lambda host: (len(host), host))
    current = environment.get(CURRENT_HOST, "")
    if current not in hosts:
        raise SpecError(
            f"{CURRENT_HOST} in the environment: expected one of {', '.join(hosts)}, found {current[:80]!r}"
        )
    addresses = [f"{host}:{PORT}" for host in hosts]
    return place_by_number(ENGINE, hosts.index(current), addresses, counts)
