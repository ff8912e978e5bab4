"""An agent without its launcher stops its tasks in order, and then kills them."""

import signal

from dtrain.cluster import TaskId
from dtrain_cli.agent.lease import GRACE_S, LEASE_S, Lease
from dtrain_cli.launch.policies.ordered_stop import RemainingTask

WORKER, CHIEF, SERVER = (TaskId.parse(name) for name in ("worker:0", "chief:0", "ps:0"))


def test_a_lease_runs_from_the_moment_that_the_launcher_has_heard_of():
    lease = Lease(100.0)
    lease.renew(103.0)
    lease.renew(101.0)  # a ping that was under way for long
    assert lease.due([RemainingTask(WORKER)], 103.0 + LEASE_S - 0.1) == []
    assert lease.due([RemainingTask(WORKER)], 103.0 + LEASE_S) == [(WORKER, signal.SIGTERM)]


def test_workers_leave_first_and_servers_last_and_all_are_killed_at_the_end():
    lease = Lease(0.0)
    there = [RemainingTask(WORKER), RemainingTask(CHIEF), RemainingTask(SERVER)]
    assert lease.due(there, LEASE_S) == [(WORKER, signal.SIGTERM)]
    told = [RemainingTask(CHIEF), RemainingTask(SERVER)]
    assert lease.due(told, LEASE_S + 1) == [(CHIEF, signal.SIGTERM)]
    left = [RemainingTask(CHIEF, LEASE_S + 1), RemainingTask(SERVER)]
    assert lease.due(left, LEASE_S + GRACE_S) == [(CHIEF, signal.SIGKILL), (SERVER, signal.SIGKILL)]


def test_a_lease_that_has_run_out_stays_so():
    lease = Lease(0.0)
    lease.due([RemainingTask(WORKER)], LEASE_S)
    lease.renew(1000.0)
    assert lease.due([RemainingTask(WORKER, LEASE_S)], LEASE_S + GRACE_S) == [(WORKER, signal.SIGKILL)]


def test_the_launcher_says_how_long_a_lease_lasts():
    lease = Lease(0.0, 60.0)
    assert lease.due([RemainingTask(WORKER)], 59.9) == []
    assert lease.due([RemainingTask(WORKER)], 60.0) == [(WORKER, signal.SIGTERM)]
