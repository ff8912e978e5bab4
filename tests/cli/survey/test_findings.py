"""What `check --hosts` says: a table, and a sentence for each problem."""

from dtrain_cli.survey import HostFound, problems, remarks, table


def good(host, **facts):
    return HostFound(host, 0.41, "3.11", "0.1.0", 0.0012, True, f"10.0.0.{host[1:]}", **facts)


def test_the_table_shows_hosts():
    assert list(table([good("h1"), good("h2")])) == [
        "host  ssh    Python  dtrain  clock     address   this folder",
        "h1    0.4 s  3.11    0.1.0   +0.001 s  10.0.0.1  seen",
        "h2    0.4 s  3.11    0.1.0   +0.001 s  10.0.0.2  seen",
    ]


def test_a_host_that_cannot_be_reached_has_a_row_and_a_sentence():
    lost = HostFound("h3", problem="h3: ssh cannot log in (No route to host)")
    assert list(table([lost]))[1].split() == ["h3", "no", "-", "-", "-", "-", "-"]
    assert list(problems([lost])) == ["h3: ssh cannot log in (No route to host)"]


def test_both_ends_of_a_pair_that_is_cut_are_named_with_their_addresses():
    cut = good("h1", unreached={"h2": "Connection refused"})
    (sentence,) = problems([cut, good("h2")])
    assert sentence.startswith("h1 (10.0.0.1) cannot reach h2 (10.0.0.2): Connection refused; open its ports")


def test_wrong_clocks_and_folders_are_remarked_on():
    late = good("h2")
    late.clock_s, late.sees_folder = -3600.0, False
    assert list(remarks([good("h1"), late], "/home/me")) == [
        "h2: its clock is 3600.0 s behind this machine's; the times in logs and certificates go by it",
        "/home/me is on h1 the same folder as here, and not on h2",
    ]
