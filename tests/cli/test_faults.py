import signal

from dtrain.config import KillFault, PauseFault, SimulateSection
from dtrain_cli.faults import FaultSchedule


def test_each_fault_fires_once_at_its_step_or_second():
    schedule = FaultSchedule(
        SimulateSection(kill=(KillFault("worker:1", at_step=200),), pause=(PauseFault("ps:0", for_s=2.0, at_s=3.0),))
    )
    seen = []
    for second in range(8):
        step = second * 50 if second else None
        seen += [(second, str(fault.task), fault.signal) for fault in schedule.due(float(second), step)]
    assert seen == [
        (3, "ps:0", signal.SIGSTOP),
        (4, "worker:1", signal.SIGKILL),
        (5, "ps:0", signal.SIGCONT),
    ]
