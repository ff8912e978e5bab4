"""What `check --hosts` says: every pair once, a table that fits a terminal, a sentence for each problem."""

from itertools import combinations

import pytest

from dtrain_cli.survey.findings import HostFound, LinkFound, problems, remarks, rounds, table


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_every_pair_is_measured_once_and_no_host_twice_at_a_time(count):
    hosts = [f"h{number}" for number in range(count)]
    pairs = [pair for each in rounds(hosts) for pair in each]
    assert sorted(map(sorted, pairs)) == sorted(map(sorted, combinations(hosts, 2)))
    for each in rounds(hosts):
        busy = [host for pair in each for host in pair]
        assert len(busy) == len(set(busy))


def good(host, **facts):
    return HostFound(host, 0.41, "3.11", "0.1.0", 0.0012, True, f"10.0.0.{host[1:]}", **facts)


def test_the_table_shows_hosts_and_links():
    one = good("h1", links={"h2": LinkFound(0.00021, 1.25e9)})
    other = good("h2", links={"h1": LinkFound(problem="no answer within 5 s")})
    assert list(table([one, other])) == [
        "host  ssh    Python  dtrain  clock     address   this folder",
        "h1    0.4 s  3.11    0.1.0   +0.001 s  10.0.0.1  seen",
        "h2    0.4 s  3.11    0.1.0   +0.001 s  10.0.0.2  seen",
        "",
        "from    to      latency    bandwidth",
        "h1      h2      0.21 ms    10.0 Gbit/s",
        "h2      h1      no: no answer within 5 s",
    ]


def test_a_host_that_cannot_be_reached_has_a_row_and_a_sentence():
    lost = HostFound("h3", problem="h3: ssh cannot log in (No route to host)")
    assert list(table([lost]))[1].split() == ["h3", "no", "-", "-", "-", "-", "-"]
    assert list(problems([lost])) == ["h3: ssh cannot log in (No route to host)"]


def test_both_ends_of_a_pair_that_is_cut_are_named_with_their_addresses():
    cut = good("h1", links={"h2": LinkFound(problem="Connection refused")})
    (sentence,) = problems([cut, good("h2")])
    assert sentence.startswith("h1 (10.0.0.1) cannot reach h2 (10.0.0.2): Connection refused; open its ports")


def test_wrong_clocks_and_folders_are_remarked_on():
    late = good("h2")
    late.clock_s, late.sees_folder = -3600.0, False
    assert list(remarks([good("h1"), late], "/home/me")) == [
        "h2: its clock is 3600.0 s behind this machine's; the times in logs and certificates go by it",
        "/home/me is on h1 the same folder as here, and not on h2",
    ]


def test_many_hosts_show_their_slowest_links_alone():
    names = [f"h{number}" for number in range(9)]
    links = {name: LinkFound(0.001, 1e6 * (number + 1)) for number, name in enumerate(names[1:])}
    lines = list(table([good("h0", links=links), *(good(name) for name in names[1:])]))
    assert len(lines) == 10 + 2 + 3
    assert "8 Mbit/s" in lines[-3]
    assert max(map(len, lines)) <= 80
