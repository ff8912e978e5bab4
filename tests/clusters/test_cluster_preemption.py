"""Workers of a loop of its own on real processes: one has a notice of preemption, all save after one step."""

import re
from pathlib import Path

PROGRAM = str(Path(__file__).parent / "preempted_loop.py")
WORDS = (
    *("--strategy", "multi_worker_mirrored", "--workers", "2", "--set", "cluster.chief=0"),
    "--no-evaluator",
)


def test_all_workers_save_after_one_step_when_one_has_the_notice_and_go_on_from_there(launcher):
    """The notice is not the leader's; tests/conformance/test_backup_golden.py has it come to any of them."""

    def start(folder, signalled):
        return launcher.start(*WORDS, PROGRAM, str(launcher.folder / folder), signalled)

    def ended(launch, code):
        assert launch.end() == code, launch.err
        launch.wait_gone()
        return launch.out

    whole, stopped = start("whole", -1), start("stopped", 1)
    finished = set(re.findall("FINISHED .*", ended(whole, 0)))
    assert len(finished) == 1
    ended(stopped, 42)
    out = ended(start("stopped", -1), 0)
    restored = re.findall(r"RESTORED (\d+) ", out)
    assert len(restored) == 2
    assert len(set(restored)) == 1
    assert 4 < int(restored[0]) < 30
    assert set(re.findall("FINISHED .*", out)) == finished
