"""Logins to many hosts: few at once, and again after a refusal that may be chance."""

from dtrain_cli.fleet.host_rules import AT_ONCE, WAITS_S, Logins


def test_few_logins_are_under_way_at_once():
    logins = Logins([f"h{number}" for number in range(20)])
    first = logins.begin(0.0)
    assert first == [f"h{number}" for number in range(AT_ONCE)]
    assert logins.begin(0.0) == []
    logins.succeeded("h3")
    assert logins.begin(0.0) == ["h8"]


def test_a_host_that_refuses_is_tried_again_until_it_has_refused_often():
    logins = Logins(["h0", "h1"])
    now_s = 0.0
    for wait_s in WAITS_S:
        assert "h0" in logins.begin(now_s)
        assert logins.failed("h0", now_s)
        assert logins.begin(now_s) == []
        now_s += wait_s
    assert logins.begin(now_s) == ["h0"]
    assert not logins.failed("h0", now_s)


def test_all_are_done_when_each_has_succeeded():
    logins = Logins(["h0", "h1"])
    logins.begin(0.0)
    logins.succeeded("h0")
    assert not logins.done
    assert logins.missing == ["h1"]
    logins.succeeded("h1")
    assert logins.done


def test_a_server_that_drops_logins_at_random_lets_all_in():
    """MaxStartups 10:30:100 drops none of eight; a site that drops every third login is still reached."""
    logins = Logins([f"h{number}" for number in range(40)])
    now_s, count, most = 0.0, 0, 0
    under_way: list[str] = []
    while not logins.done:
        under_way += logins.begin(now_s)
        most = max(most, len(under_way))
        host = under_way.pop(0) if under_way else None
        if host is not None:
            count += 1
            if count % 3 == 0:
                assert logins.failed(host, now_s)
            else:
                logins.succeeded(host)
        now_s += 0.05
    assert most <= AT_ONCE
