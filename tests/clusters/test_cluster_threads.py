"""`dtrain launch --strategy mirrored`: one task, whose checkpoints a kill goes back to and an evaluator follows,
and nothing is left.
"""

import os
import signal

from clusters.watching import PACED, report_of, saved_steps, step_of, succeeded, tasks_of

STEPS = 60
PROGRAM = (PACED, "--steps", str(STEPS), "--wait_for", "go", "--after", "60", "--validate")


def test_threads_of_one_task_train_and_go_on_after_a_kill(launcher):
    """With either strategy, at the same time."""
    words = ("--set", "training.replicas=3", "--set", "restart.chief.backoff_s=0.1")
    launches = [
        launcher.start("--strategy", strategy, *words, "--set", "checkpoint.every_steps=10", *PROGRAM)
        for strategy in ("mirrored", "central_storage")
    ]
    for launch in launches:
        launch.wait_for(
            lambda launch=launch: launch.record()["state"] == "running" and step_of(launch, "chief:0") >= 20,
            "20 steps",
        )
        os.kill(launch.pid("chief:0"), signal.SIGKILL)
    (launcher.folder / "go").touch()
    for launch in launches:
        succeeded(launch)
        report = report_of(launch.run_dir)
        tasks = tasks_of(report)
        assert (list(tasks), report["global_step"]) == (["chief:0", "evaluator:0"], STEPS)
        assert [tasks[task]["restarts"] for task in ("chief:0", "evaluator:0")] == [1, 0]
        assert report["evaluation"]["global_step"] == STEPS
        assert saved_steps(launch.run_dir)[-1] == STEPS
        assert "goes on from step " in launch.log("chief:0", 1)
