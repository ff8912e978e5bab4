"""A leader reads what servers of other hosts say of themselves, by the clock of its own host."""

import json

from dtrain.cluster import TaskId
from dtrain_cli.fleet.mirror import SERVERS_EVERY_S, HostClock, SharedStatuses

CHIEF, WORKER, SERVER = (TaskId.parse(name) for name in ("chief:0", "worker:0", "ps:0"))
CLOCKS = {"h1": HostClock(1000.0, 0.0), "h2": HostClock(5000.0, 0.0)}


def says(task, at_s=5010.0):
    return {"task": str(task), "attempt": 0, "monotonic_s": at_s, "waiting_monotonic_s": None, "step": 7}


def test_servers_are_told_to_the_chiefs_host_alone_and_only_what_is_new():
    places = {CHIEF: "h1", SERVER: "h2", WORKER: "h2"}
    shared = SharedStatuses()
    ((host, put),) = shared.due(0.0, says, places, CLOCKS)
    assert (host, put.path) == ("h1", "tasks/ps-0/status.json")
    assert json.loads(put.data) == {"task": "ps:0", "attempt": 0, "monotonic_s": 1010.0}
    assert list(shared.due(SERVERS_EVERY_S / 2, lambda task: says(task, 5011.0), places, CLOCKS)) == []
    assert list(shared.due(SERVERS_EVERY_S, says, places, CLOCKS)) == []
    assert len(list(shared.due(2 * SERVERS_EVERY_S, lambda task: says(task, 5012.0), places, CLOCKS))) == 1


def test_a_host_that_is_not_up_is_told_nothing():
    places = {CHIEF: "h1", SERVER: "h2"}
    assert list(SharedStatuses().due(0.0, says, places, {"h2": CLOCKS["h2"]})) == []
