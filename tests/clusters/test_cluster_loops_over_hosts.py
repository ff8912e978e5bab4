"""Loops of one's own, and sums within a step of `fit`, over several hosts, which are network namespaces: the bits
are those of threads.
"""

from clusters import normalized, own_loop
from clusters.test_cluster_hosts import MORE, over_hosts  # noqa: F401  (a fixture)
from strategies.shipped import mirrored

from dtrain.config import MirroredSection
from dtrain.strategies.mirrored import MirroredThreads


def test_a_loop_has_the_bits_of_threads_wherever_its_tasks_are(over_hosts):  # noqa: F811
    run = over_hosts(0, 1, 1)
    run.start_all(program=own_loop.__file__)
    losses = " ".join(own_loop.run(mirrored(3)))
    two_models = own_loop.told(*own_loop.run_two_models(mirrored(3))[:2])
    for task, command in run.commands.items():
        assert command.end() == 0, f"{task}: {command.err}"
        assert command.out.splitlines()[-2:] == [f"losses {losses}", f"two models {two_models}"]


@MORE
def test_a_task_that_dies_ends_the_loop_of_all_others_and_is_named(over_hosts):  # noqa: F811
    run = over_hosts(0, 1, 1)
    run.start_all("worker:1", program=own_loop.__file__)
    codes = {task: command.end() for task, command in run.commands.items()}
    assert codes.pop("worker:1") == -9
    assert 0 not in codes.values()
    said = [run.commands[task].err for task in codes]
    # One of them may hear of the other's end first.
    assert any("worker:1 has ended, or cannot be reached any more" in each for each in said), said


def test_fit_normalizes_over_the_replicas_of_all_hosts(over_hosts):  # noqa: F811
    run = over_hosts(0, 1, 1)
    run.start_all(program=normalized.__file__)
    expected = normalized.run(MirroredThreads(MirroredSection(replicas=3, deterministic=True)))
    for task, command in run.commands.items():
        assert command.end() == 0, f"{task}: {command.err}"
        assert command.out.splitlines()[-1] == expected, task
