"""Logins to many hosts: few at once, and again after a refusal that may be chance."""

from dtrain_cli.fleet.host_rules import AGAIN_S, APART_S, AT_ONCE, HostsAlive, LogInAgain


def begun(alive, now_s):
    return [action.host for action in alive.due(now_s) if isinstance(action, LogInAgain)]


def expected(count):
    alive = HostsAlive()
    alive.expect([f"h{number}" for number in range(count)], 0.0)
    return alive


def test_few_logins_are_under_way_at_once():
    alive = expected(20)
    assert begun(alive, 0.0) == [f"h{number}" for number in range(AT_ONCE)]
    assert begun(alive, 0.0) == []
    assert alive.ready("h3", 1.0, 0.0) == []
    assert begun(alive, 0.0) == ["h8"]


def test_a_host_that_refuses_is_tried_again_later_and_later():
    alive, now_s = expected(1), 0.0
    for wait_s in AGAIN_S:
        assert begun(alive, now_s) == ["h0"]
        alive.cut("h0", now_s)
        assert begun(alive, now_s + wait_s - 0.01) == []
        now_s += wait_s
    assert begun(alive, now_s) == ["h0"]


def test_hosts_that_refuse_together_are_not_tried_again_together():
    alive = expected(3)
    begun(alive, 0.0)
    for host in ("h0", "h1", "h2"):
        alive.cut(host, 0.0)
    assert [begun(alive, AGAIN_S[0] + number * APART_S + 0.001) for number in range(3)] == [
        ["h0"],
        ["h1"],
        ["h2"],
    ]


def test_a_host_that_has_never_been_there_is_not_lost():
    alive = expected(1)
    assert [type(action) for at_s in range(200) for action in alive.due(at_s)] == [LogInAgain]
    assert not alive.is_up("h0")


def test_a_host_that_is_given_up_is_logged_in_to_no_more():
    alive = expected(2)
    begun(alive, 0.0)
    alive.cut("h0", 0.0)
    alive.forget("h0")
    assert begun(alive, 100.0) == []


def test_a_server_that_drops_logins_at_random_lets_all_in():
    """MaxStartups 10:30:100 drops none of eight; a site that drops every third login is still reached."""
    alive = expected(40)
    now_s, count, most = 0.0, 0, 0
    under_way: list[str] = []
    while not all(alive.is_up(f"h{number}") for number in range(40)):
        under_way += begun(alive, now_s)
        most = max(most, len(under_way))
        host = under_way.pop(0) if under_way else None
        if host is not None:
            count += 1
            if count % 3 == 0:
                alive.cut(host, now_s)
            else:
                alive.ready(host, 1.0, now_s)
        now_s += 0.05
        assert now_s < 100.0
    assert most <= AT_ONCE
