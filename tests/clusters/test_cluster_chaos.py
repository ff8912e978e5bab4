"""`dtrain chaos` on those who do not train: servers and the evaluator. Training goes on, and what was undone
is undone.
"""

import signal

from clusters.watching import IN_SHARDS, PACED, report_of, step_of, tasks_of


def test_servers_and_the_evaluator_are_slowed_paused_and_killed(launcher):
    words = (
        "--workers",
        "1",
        "--ps",
        "2",
        "--set",
        "checkpoint.every_steps=10",
        "--set",
        "restart.evaluator.backoff_s=0.1",
    )
    words = (*words, *IN_SHARDS, "--set", "training.transport=grpc")
    launch = launcher.start(
        *words, "--set", "restart.ps.backoff_s=0.1", PACED, "--width", "300", "--pace_s", "0.02", "--validate"
    )

    def chaos(*order):
        command = launcher.dtrain("chaos", str(launch.run_dir), *order)
        assert command.end() == 0, command.err
        before = step_of(launch)
        launch.wait_for(lambda: step_of(launch) > before, f"training goes on after {order}")
        return command.err

    def evaluated():
        return (report_of(launch.run_dir)["evaluation"] or {"global_step": -1})["global_step"]

    launch.wait_running()
    assert chaos("slow", "ps:1", "5") == "ps:1 computes 5 times slower\n"
    assert chaos("slow", "evaluator:0", "3") == "evaluator:0 computes 3 times slower\n"
    assert chaos("pause", "ps:0", "--for", "0.3") == "ps:0 paused\nps:0 resumed\n"
    assert chaos("pause", "evaluator:0", "--for", "0.1") == "evaluator:0 paused\nevaluator:0 resumed\n"
    chaos("kill", "evaluator:0")
    launch.wait_for(lambda: launch.task("evaluator:0")["restarts"] == 1, "the evaluator is started again")
    before = evaluated()
    launch.wait_for(lambda: evaluated() > before, "it evaluates again")
    chaos("kill", "ps:1")
    launch.wait_for(lambda: launch.task("ps:1")["restarts"] == 1, "the server is started again")
    launch.send(signal.SIGTERM)
    assert launch.end() == 143
    launch.wait_gone()
    tasks = tasks_of(report_of(launch.run_dir))
    assert {name: task["restarts"] for name, task in tasks.items() if task["restarts"]} == {
        "ps:1": 1,
        "evaluator:0": 1,
    }
    assert "failed" not in {task["state"] for task in tasks.values()}, "no worker is lost with a server"
