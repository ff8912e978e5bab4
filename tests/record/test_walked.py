"""How much of the product one step passes, and the step of a death: figures that only become smaller.

A limit is lowered with the code. `pytest -s` prints the figures, and where they are.
"""

import os

import pytest
from clusters.test_cluster_hosts import over_hosts  # noqa: F401  (a fixture)
from launching import wait_until
from record import walked
from record.walked import walks, wrapper

PROGRAM = walked.__file__
MIRRORED = ("--strategy", "multi_worker_mirrored", "--workers", "2")
LIMITS = {
    "servers": (158, 29),
    "one host": (114, 24),
    "hosts": (222, 36),
    "a death": (252, 49),
}
"""Functions and files at most. They are to become 80 and 15, 60 and 12, 110 and 18, and for a death 15 files."""
VERBOSE = "DTRAIN_WALKS" in os.environ


def check(name, folder, walk, *tasks):
    """Let `walk` run the program with a folder of its own, print what some tasks have passed together, and compare it
    with the limits. What comes each second, such as a heartbeat, may fall into it: so one over a limit is made again.
    """
    for attempt in ("first", "second"):
        made = folder / attempt
        made.mkdir()
        walk(made)
        for task in tasks:
            wait_until((made / f"walk-{task}").exists, f"the walk of {task}")
        functions, files = walks(made, *tasks)
        print(f"\n{name}: {len(functions)} functions in {len(files)} files ({', '.join(tasks)})")
        if VERBOSE:
            print(
                "\n".join(f"    {file.partition('/runtime/')[2] or file}: {name}" for file, name in functions)
            )
        assert len(functions) > 10, "nothing was seen"
        if len(functions) <= LIMITS[name][0] and len(files) <= LIMITS[name][1]:
            return
    assert len(functions) <= LIMITS[name][0]
    assert len(files) <= LIMITS[name][1]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "walked"
    folder.mkdir()
    return folder


def launch(launcher, *words, tasks, dies=False, begins="worker:0"):
    """Return what runs the program to its end, with tasks that are profiled."""

    def walk(folder):
        program = (PROGRAM, "--begins", begins, "--tasks", str(tasks), *(["--dies"] if dies else []))
        run = launcher.start("--no-evaluator", *words, *program, wrapper=wrapper(folder), warm=False)
        assert run.end() == 0, run.err

    return walk


def test_a_step_with_servers(launcher, folder):
    walk = launch(launcher, "--workers", "2", "--ps", "2", "--updates", "sync", tasks=5)
    check("servers", folder, walk, "worker:0", "ps:0", "ps:1")


def test_a_step_of_replicas_of_one_host(launcher, folder):
    check("one host", folder, launch(launcher, *MIRRORED, tasks=3), "worker:0")


def test_the_step_in_which_a_replica_dies(launcher, folder):
    walk = launch(launcher, *MIRRORED, tasks=3, dies=True, begins="worker:1")
    check("a death", folder, walk, "chief:0", "worker:0")


def test_a_step_of_replicas_over_two_hosts(over_hosts, folder):  # noqa: F811
    def walk(folder):
        run = over_hosts(0, 0, 1, deterministic=False)
        for task, host in run.tasks.items():
            words = ("--begins", "worker:1", "--tasks", "3")
            through = (*run.hosts.on(host), *wrapper(folder))
            run.start(task, *words, program=PROGRAM, wrapper=through, warm=False)
        for task, command in run.commands.items():
            assert command.end() == 0, f"{task}: {command.err}"

    check("hosts", folder, walk, "worker:1")
