"""The host and the address of every task, and what becomes of them when a host is lost."""

import pytest

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection, read_hosts
from dtrain_cli.fleet.link import HostError
from dtrain_cli.fleet.locations import Locations

PS0, PS1, WORKER0, WORKER1, CHIEF = (
    TaskId.parse(name) for name in ("ps:0", "ps:1", "worker:0", "worker:1", "chief:0")
)


def located(hosts="h1,h2,h3", **counts):
    cluster = ClusterSection(**(counts or {"chief": 1, "ps": 2, "worker": 2, "evaluator": 1}))
    locations = Locations(read_hosts(hosts))
    locations.place(cluster, {})
    names = [host.host for host in read_hosts(hosts)]
    locations.addresses = {name: f"10.0.0.{number}" for number, name in enumerate(names, 1)}
    held = {
        host: [port or 20000 + number for number, port in enumerate(ports)]
        for host, ports in locations.wanted(cluster).items()
    }
    return locations, locations.assign_ports(cluster, held)


def test_every_task_gets_a_port_of_its_host():
    locations, addresses = located()
    for task in addresses.tasks():
        number = locations.host_of(task)[1:]
        assert addresses.address(task).startswith(f"10.0.0.{number}:2000")
    assert len({addresses.address(task) for task in addresses.tasks()}) == 5


def test_only_servers_of_other_hosts_are_tried_where_there_are_servers():
    locations, _ = located()
    for host, wanted in locations.pairs(foreign=False).items():
        assert set(wanted.values()) == {str(task) for task in (PS0, PS1) if locations.host_of(task) != host}
    assert "worker:0" in {
        name for wanted in locations.pairs(foreign=True).values() for name in wanted.values()
    }


def test_a_lost_hosts_server_moves_with_a_new_address():
    locations, _ = located()
    lost = locations.host_of(PS1)
    moving = locations.move(lost, foreign=False)
    assert PS1 in [task for tasks in moving.values() for task in tasks]
    host = locations.host_of(PS1)
    assert host != lost
    assert locations.moved_to(PS1) is None
    locations.change_port(PS1, 31000)
    assert locations.moved_to(PS1) == f"10.0.0.{host[1:]}:31000"
    assert locations.moved_to(PS0) is None


def test_a_task_without_a_free_slot_is_stranded_with_a_reason():
    locations, _ = located("h1:3,h2:3")
    lost = locations.host_of(WORKER0)
    locations.move(lost, foreign=False)
    assert "slot" in next(iter(locations.stranded.values()))


def test_a_commands_tasks_cannot_move():
    locations, _ = located()
    assert locations.move(locations.host_of(WORKER0), foreign=True) == {}
    assert "TF_CONFIG" in locations.stranded[WORKER0]


def test_an_address_that_only_its_own_host_reaches_is_refused_beside_others():
    locations, _ = located()
    locations.addresses["h2"] = "127.0.0.1"
    with pytest.raises(
        HostError, match=r"^h2: the login came in on 127\.0\.0\.1, which no other host can reach"
    ):
        locations.check_addresses()
    locations.addresses = dict.fromkeys(locations.addresses, "127.0.0.1")
    locations.check_addresses()


def test_a_written_port_that_is_taken_is_named():
    cluster = ClusterSection(worker=("h1:2222", "h2:2222"))
    locations = Locations(read_hosts("h1,h2"))
    locations.place(cluster, {})
    locations.addresses = {"h1": "10.0.0.1", "h2": "10.0.0.2"}
    with pytest.raises(HostError, match=r"h2: port 2222, which cluster\.worker\.1 names, is taken"):
        locations.assign_ports(cluster, {"h1": [2222], "h2": [20001]})
    assert locations.assign_ports(cluster, {"h1": [2222], "h2": [2222]}).address(WORKER1) == "h2:2222"


def test_written_ports_are_left_to_their_tasks_by_those_that_take_any():
    cluster = ClusterSection(chief=1, ps=1, worker=("h1:2222", "h1:2223"))
    locations = Locations(read_hosts("h1"))
    locations.place(cluster, {})
    locations.addresses = {"h1": "10.0.0.1"}
    addresses = locations.assign_ports(cluster, {"h1": [2222, 2223, 20001, 20002]})
    assert [addresses.address(task) for task in (CHIEF, PS0, WORKER0, WORKER1)] == [
        "10.0.0.1:20001",
        "10.0.0.1:20002",
        "h1:2222",
        "h1:2223",
    ]
