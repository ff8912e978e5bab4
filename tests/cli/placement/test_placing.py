"""Which task goes to which host: golden placements, and the rules that every placement keeps."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.config import ClusterSection, Host, read_hosts
from dtrain.errors import SpecError
from dtrain_cli.placement import hosts_of_addresses, place

GOLDEN = json.loads((Path(__file__).parent / "placements.json").read_text())


def cluster_of(counts):
    return ClusterSection(**{role: tuple(n) if isinstance(n, list) else n for role, n in counts.items()})


def by_host(placed):
    """The tasks of each host, as the golden file has them."""
    hosts = {}
    for task, host in placed.items():
        hosts[host.host] = f"{hosts[host.host]} {task}" if host.host in hosts else str(task)
    return hosts


@every_row("case", GOLDEN, ids=lambda case: case["name"])
def test_a_placement_is_the_golden_one(case):
    places = case.get("place", {})
    if isinstance(places, dict):
        places = {role: tuple(rule) if isinstance(rule, list) else rule for role, rule in places.items()}
    assert by_host(place(cluster_of(case["cluster"]), read_hosts(case["hosts"]), places)) == case["placed"]


@pytest.mark.parametrize(
    ("counts", "hosts", "places", "message"),
    [
        (
            {"chief": 1, "ps": 2, "worker": 8},
            "h1:2,h2:4",
            {},
            r"hosts: 11 tasks \(1 chief, 8 workers, 2 ps\) have 6 slots \(h1:2, h2:4\); give more",
        ),
        ({"chief": 1, "ps": 2}, "h1:1,h2", {"ps": "h1"}, "place: ps:1 has no slot on h1: h1 has 1 in all"),
        ({"worker": ["m1:2222"]}, "h1,h2", {}, "cluster: worker:0 is at m1, which is none of the hosts"),
        ({"worker": 1}, (), {}, "hosts: expected at least one host, found none"),
    ],
)
def test_what_cannot_be_placed_is_said_in_one_sentence(counts, hosts, places, message):
    with pytest.raises(SpecError, match=message) as refused:
        place(cluster_of(counts), read_hosts(hosts), places)
    assert "\n" not in str(refused.value)


HOSTS = st.lists(st.none() | st.integers(1, 4), min_size=1, max_size=6).map(
    lambda slots: [Host(f"h{number}", each) for number, each in enumerate(slots, 1)]
)
CLUSTERS = st.builds(
    ClusterSection,
    chief=st.integers(0, 1),
    ps=st.integers(0, 5),
    worker=st.integers(1, 12),
    evaluator=st.integers(0, 1),
)
RULES = st.sampled_from(["spread", "pack", "h1", ("h1",)])
PLACES = st.sampled_from(["spread", "pack"]) | st.dictionaries(
    st.sampled_from(["chief", "ps", "worker", "evaluator"]), RULES
)


def room(hosts):
    slots = [host.slots for host in hosts]
    return 10**6 if None in slots else sum(slots)


@given(CLUSTERS, HOSTS, PLACES)
def test_every_task_has_a_host_and_no_host_more_than_its_slots(cluster, hosts, places):
    tasks = sum(cluster.count(role) for role in ("chief", "ps", "worker", "evaluator"))
    try:
        placed = place(cluster, hosts, places)
    except SpecError:
        named = isinstance(places, dict) and any(rule in ("h1", ("h1",)) for rule in places.values())
        assert tasks > room(hosts) or named or cluster.evaluator
        return
    assert len(placed) == tasks
    assert all(host in hosts for host in placed.values())
    used = Counter(host.host for host in placed.values())
    assert all(host.slots is None or used[host.host] <= host.slots for host in hosts)
    assert place(cluster, hosts, places) == placed


def test_a_spare_host_has_no_task_at_the_start():
    hosts = [*read_hosts("h1"), Host("h2", spare=True)]
    placed = place(cluster_of({"chief": 1, "ps": 2, "worker": 2, "evaluator": 1}), hosts, "spread")
    assert {host.host for host in placed.values()} == {"h1"}
    with pytest.raises(SpecError, match="expected at least one host, found none"):
        place(cluster_of({"chief": 1}), hosts[1:], {})


def test_the_evaluator_goes_with_the_leader_whose_checkpoints_it_reads():
    hosts = read_hosts("h1:2,h2:4,h3:1")
    placed = place(cluster_of({"chief": 1, "ps": 1, "worker": 1, "evaluator": 1}), hosts, "spread")
    assert by_host(placed)["h1"] == "chief:0 evaluator:0"
    with pytest.raises(SpecError, match="evaluator:0 has no slot on h1, beside the leader whose checkpoints"):
        place(cluster_of({"chief": 1, "worker": 1, "evaluator": 1}), read_hosts("h1:1,h2:9"), {})


def test_addresses_name_their_hosts_themselves():
    cluster = cluster_of({"chief": ["a:1"], "ps": ["[fd00::1]:2", "a:3"], "worker": 2})
    assert [host.host for host in hosts_of_addresses(cluster)] == ["a", "fd00::1"]
