"""Which hosts are alive: pings, silence, new logins, and the moment from which a host's tasks are dead."""

from itertools import pairwise

from dtrain.cluster import TaskId
from dtrain_cli.agent.lease import GRACE_S
from dtrain_cli.fleet.host_rules import LOST_AGAIN_S, Gone, HostsAlive, LogInAgain, SendPing
from dtrain_cli.targets.target import HostNews

WORKER = TaskId.parse("worker:0")
LEASE_S = 60.0
GONE_S = LEASE_S + 7.0


def up():
    alive = HostsAlive(LEASE_S)
    alive.ready("h1", 5000.0, 10.0)
    alive.started(WORKER, 0, "h1")
    return alive


def test_a_ping_echoes_the_newest_moment_that_was_heard():
    alive = up()
    assert alive.due(10.0) == [SendPing("h1", 5000.0)]
    alive.heard("h1", 10.4, 5000.4)
    alive.heard("h1", 10.5)
    assert alive.due(10.6) == []
    assert alive.due(11.0) == [SendPing("h1", 5000.4)]


def test_a_silent_host_is_told_once_and_is_lost_in_the_end():
    alive = up()
    limit = "it is lost after 67 s without a word"
    silent = HostNews("silent", "h1", f"h1 is not heard, and is waited for: {limit}")
    assert silent in alive.due(15.0)
    assert silent not in alive.due(16.0)
    assert alive.heard("h1", 17.0) == [HostNews("heard again", "h1", "h1 is heard again, after 7 s")]
    told = [action for at_s in range(18, 100) for action in alive.due(at_s) if isinstance(action, Gone)]
    assert told == [Gone("h1", ((WORKER, 0),), usable=False, silent_s=GONE_S)]
    assert not alive.is_up("h1")


def test_a_stream_that_ends_leads_to_a_new_login_and_a_new_agent_proves_the_tasks_dead():
    alive = up()
    alive.cut("h1", 12.0)
    assert alive.due(12.0) == []
    assert alive.due(12.3) == [LogInAgain("h1")]
    assert alive.due(12.5) == []
    alive.cut("h1", 13.0)  # the login has failed
    assert alive.due(13.2) == []
    assert alive.due(14.0) == [LogInAgain("h1")]
    (gone,) = alive.ready("h1", 9000.0, 14.5)
    assert gone == Gone("h1", ((WORKER, 0),), usable=True, silent_s=4.5)
    assert alive.is_up("h1")


def test_a_task_that_has_ended_is_not_lost_with_its_host():
    alive = up()
    alive.ended(WORKER, 0)
    assert [action.tasks for action in alive.due(10.0 + GONE_S) if isinstance(action, Gone)] == [()]


def test_a_lost_host_is_logged_in_to_now_and_then_and_is_used_when_it_is_back():
    alive = up()
    alive.due(10.0 + GONE_S)
    again = [
        at_s for at_s in range(78, 178) if LogInAgain("h1") in alive.due(at_s) and not alive.cut("h1", at_s)
    ]
    assert [later - earlier for earlier, later in pairwise(again)] == [LOST_AGAIN_S] * 5
    assert alive.ready("h1", 1.0, 180.0) == [Gone("h1", (), usable=True, silent_s=170.0)]
    assert alive.is_up("h1")
    assert [action for at_s in range(181, 300) for action in alive.due(at_s) if isinstance(action, Gone)] == [
        Gone("h1", (), usable=False, silent_s=GONE_S)
    ]


def test_a_late_end_of_an_attempt_leaves_the_next_one_on_its_host():
    alive = up()
    alive.started(WORKER, 1, "h1")
    alive.ended(WORKER, 0)
    (gone,) = [action for action in alive.due(10.0 + GONE_S) if isinstance(action, Gone)]
    assert gone.tasks == ((WORKER, 1),)


def test_a_host_is_waited_for_until_its_agent_has_ended_all_tasks():
    assert up().gone_s > LEASE_S + GRACE_S
