"""An order of `dtrain chaos` for a task on another host is carried out there once."""

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles, Slowdown, read_record, write_record
from dtrain_cli.agent.driver import RunHere
from dtrain_cli.agent.messages import ORDERS, SignalOrder
from dtrain_cli.fleet import mirror
from dtrain_cli.fleet.mirror import OrdersForTasks

WORKER = TaskId.parse("worker:1")


def test_a_task_is_slowed_down_and_signalled_on_its_host(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "LOOK_S", 0.0)
    here, there = RunFiles(tmp_path / "here"), RunHere(tmp_path / "there", {}, 0.0)
    for files in (here, there.files):
        files.attempt(WORKER, 2).mkdir(parents=True)
    orders = OrdersForTasks(here)

    def told():
        return [order for _, order in orders.due({WORKER: 2}, lambda task: "h1")]

    assert told() == []
    for factor in (3.0, None):
        slow = here.slow(WORKER, 2)
        write_record(slow, Slowdown(factor)) if factor else slow.unlink()
        (order,) = told()
        there.slow_down(order)
        assert read_record(there.files.slow(WORKER, 2), Slowdown) == (factor and Slowdown(factor))
        assert told() == []
    write_record(here.signal(WORKER, 2), 19)
    assert told() == [SignalOrder("worker:1", 2, 19)]
    assert ORDERS.decode(b'{"type":"slow","task":"worker:1","attempt":2,"factor":null}') == order
