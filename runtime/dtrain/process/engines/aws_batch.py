"""AWS Batch: a node of a multi-node parallel job, which has one container a node.

    AWS_BATCH_JOB_NODE_INDEX=2  AWS_BATCH_JOB_NUM_NODES=4  AWS_BATCH_JOB_MAIN_NODE_INDEX=0
    AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.7      (not on the main node)

A node is told only the address of the main node. So the main node is ps:0, which every task asks, and the
other servers tell it where they serve (docs/design/protocol.md#no-silent-wait). Tasks that only train serve
nowhere. Source: "Multi-node parallel jobs" in the documentation of AWS Batch, "Environment variables".
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from dtrain.cluster import Role, TaskId
from dtrain.config import ClusterSection
from dtrain.errors import SpecError
from dtrain.process.engines.place import Place, default_counts, place_by_number

INDEX = "AWS_BATCH_JOB_NODE_INDEX"
COUNT = "AWS_BATCH_JOB_NUM_NODES"
MAIN = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
ENGINE = "AWS Batch"
PORT = 2222


def place(
    environment: Mapping[str, str],
    counts: ClusterSection | None,
    own_host: Callable[[str | None], str],
) -> Place | None:
    """Return this task's place; None outside of a multi-node parallel job.

    Args:
        environment: the variables.
        counts: how many tasks of each role there are; None: see `default_counts`.
        own_host: returns the address of this machine that a peer reaches, of which the address is given if
            one is known.

    Raises:
        SpecError: the variables are not as documented; or there are no servers, of which the first is the
            node that all others know.
    """
    if not environment.get(INDEX) or not environment.get(COUNT):
        return None
    number, nodes, main = (_number(environment, name) for name in (INDEX, COUNT, MAIN))
    if not (number < nodes and main < nodes):
        raise SpecError(f"{INDEX} and {MAIN} in the environment: expected numbers below {COUNT}, {nodes}")
    counts = counts or default_counts(nodes)
    if nodes > 1 and counts.count(Role.PS) == 0:
        raise SpecError(
            f"on {ENGINE} a node is told only the address of the main node, which is ps:0: expected a "
            f"cluster with ps tasks, found {counts}"
        )
    given = environment.get(MAIN_ADDRESS)
    if number != main and not given:
        raise SpecError(
            f"{MAIN_ADDRESS} is not in the environment of node {number}, which is not the main one"
        )
    host = given if number != main and given else own_host(None)
    # The main node's is the first task; no host has the names of the others, which all nodes write alike.
    order = [main, *(node for node in range(nodes) if node != main)]
    addresses = [f"{host if node == main else f'node-{node}.invalid'}:{PORT}" for node in order]
    found = place_by_number(ENGINE, order.index(number), addresses, counts, TaskId(Role.PS, 0))
    if found.task.role is Role.PS and number != main:
        return replace(found, serves_at=f"{own_host(given)}:{PORT}")
    return found


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not value.isdecimal() or len(value) > 5:
        raise SpecError(f"{name} in the environment: expected a number below 100000, found {value[:80]!r}")
    return int(value)
