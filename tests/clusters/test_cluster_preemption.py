"""Workers of a loop of its own on real processes: one has a notice of preemption, all save after one step."""

import re
from pathlib import Path

PROGRAM = str(Path(__file__).parent / "preempted_loop.py")
WORDS = (
    *("--strategy", "multi_worker_mirrored", "--workers", "2", "--set", "cluster.chief=0"),
    "--no-evaluator",
)


def test_all_workers_save_after_one_step_whichever_has_the_notice_and_go_on_from_there(launcher):
    def run(folder, signalled):
        launch = launcher.start(*WORDS, PROGRAM, str(launcher.folder / folder), str(signalled))
        code = launch.end()
        launch.wait_gone()
        return code, launch.out

    code, out = run("whole", -1)
    assert code == 0, out
    finished = set(re.findall("FINISHED .*", out))
    assert len(finished) == 1
    for signalled in (0, 1):
        code, out = run(str(signalled), signalled)
        assert code == 42, out
        code, out = run(str(signalled), -1)
        assert code == 0, out
        restored = re.findall(r"RESTORED (\d+) ", out)
        assert len(restored) == 2
        assert len(set(restored)) == 1
        assert 4 < int(restored[0]) < 30
        assert set(re.findall("FINISHED .*", out)) == finished
