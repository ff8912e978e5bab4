"""The host and the address of every task, and what becomes of them when a host is lost."""

import pytest

from dtrain.cluster import TaskId
from dtrain.config import ClusterSection, Host, read_hosts
from dtrain_cli.fleet.link import HostError
from dtrain_cli.fleet.locations import Locations

PS0, PS1, WORKER0, WORKER1, CHIEF = (
    TaskId.parse(name) for name in ("ps:0", "ps:1", "worker:0", "worker:1", "chief:0")
)


def located(hosts=None, replaced=None, **counts):
    cluster = ClusterSection(**(counts or {"chief": 1, "ps": 2, "worker": 2, "evaluator": 1}))
    hosts = hosts or read_hosts("h1,h2,h3")
    locations = Locations(hosts, replaced or {})
    locations.assign(cluster, {})
    names = [host.host for host in hosts]
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


def test_a_spare_host_has_all_tasks_of_the_lost_one_that_it_replaces_and_every_other_task_stays():
    hosts = [*read_hosts("h1,h2"), Host("h3", spare=True), Host("h4", spare=True)]
    locations, _ = located(hosts)
    lost = locations.host_of(PS1)
    moved = locations.tasks_of(lost)
    assert locations.tasks_of("h3") == []
    assert locations.replace(lost, ["h1", "h2", "h3", "h4"]) == "h3"
    assert locations.tasks_of(lost) == moved, "it is replaced by another start"
    again, addresses = located(hosts, replaced=locations.replaced)
    assert again.tasks_of("h3") == moved
    assert [host.host for host in again.hosts] == [name for name in ("h1", "h2", "h3", "h4") if name != lost]
    assert addresses.address(PS1).startswith("10.0.0.3:")
    assert again.tasks_of("h1" if lost == "h2" else "h2") == [t for t in again.places if t not in moved]
    assert again.replace("h3", ["h3", "h4"]) == "h4", "it is a host like the others now"
    third, _ = located(hosts, replaced=again.replaced)
    assert third.tasks_of("h4") == moved


@pytest.mark.parametrize(
    ("spare", "up", "lost"),
    [
        (Host("h3", spare=True), ["h1"], ["h2"]),
        (Host("h3", slots=1, spare=True), ["h1", "h3"], ["h2"]),
        (Host("h3", spare=True), ["h3"], ["h1", "h2"]),
        (Host("h3"), ["h1", "h3"], ["h2"]),
    ],
    ids=["not heard", "too few slots", "taken", "not spare"],
)
def test_no_other_host_takes_tasks_over(spare, up, lost):
    locations, _ = located([*read_hosts("h1,h2"), spare])
    assert [locations.replace(host, up) for host in lost][-1] is None
    assert lost[-1] not in locations.replaced


def test_a_spare_host_serves_at_its_own_address_where_the_cluster_names_the_lost_one():
    cluster = ClusterSection(worker=("h1:2222", "h2:2222"))
    locations = Locations([*read_hosts("h1,h2"), Host("h3", spare=True)], {"h2": "h3"})
    locations.assign(cluster, {})
    locations.addresses = {"h1": "10.0.0.1", "h3": "10.0.0.3"}
    addresses = locations.assign_ports(cluster, {"h1": [2222], "h3": [2222]})
    assert (addresses.address(WORKER0), addresses.address(WORKER1)) == ("h1:2222", "10.0.0.3:2222")


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
    locations = Locations(read_hosts("h1,h2"), {})
    locations.assign(cluster, {})
    locations.addresses = {"h1": "10.0.0.1", "h2": "10.0.0.2"}
    with pytest.raises(HostError, match=r"h2: port 2222, which cluster\.worker\.1 names, is taken"):
        locations.assign_ports(cluster, {"h1": [2222], "h2": [20001]})
    assert locations.assign_ports(cluster, {"h1": [2222], "h2": [2222]}).address(WORKER1) == "h2:2222"


def test_written_ports_are_left_to_their_tasks_by_those_that_take_any():
    cluster = ClusterSection(chief=1, ps=1, worker=("h1:2222", "h1:2223"))
    locations = Locations(read_hosts("h1"), {})
    locations.assign(cluster, {})
    locations.addresses = {"h1": "10.0.0.1"}
    addresses = locations.assign_ports(cluster, {"h1": [2222, 2223, 20001, 20002]})
    assert [addresses.address(task) for task in (CHIEF, PS0, WORKER0, WORKER1)] == [
        "10.0.0.1:20001",
        "10.0.0.1:20002",
        "h1:2222",
        "h1:2223",
    ]
