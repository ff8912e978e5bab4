"""The plan: which task is started with what, in which order; what foreign commands are told; nothing secret written
down.
"""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from row_by_row import every_row

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import CheckpointSection, ClusterSection, RunSpec, WaitSection, training_section
from dtrain.config.choices import On
from dtrain.process.assignment import TaskAssignment
from dtrain.process.resources import THREAD_LIMITS
from dtrain_cli.plan.run_plan import (
    Machine,
    RunIdentity,
    Workload,
    build_plan,
    threads_per_task,
)

ADDRESSES = ClusterSpec.from_lists(chief=["a:1"], worker=["a:2", "a:3"], ps=["a:4", "a:5"])
SPEC = RunSpec(name="x", cluster=ClusterSection(chief=1, worker=2, ps=2, evaluator=1))
RUN = RunIdentity("run-1", Path("/runs/run-1"), "s3cret of a launched run")
PROGRAM = Workload(Path("train.py"), ("--epochs", "3"), Path("/home"))
COMMAND = Workload(None, ("python", "tf.py", "--fast"), Path("/home"))
MACHINE = Machine("/usr/bin/python", 8, {"PATH": "/bin"}, master=("127.0.0.1", 29999))


def tasks(plan, *, only=lambda name: True):
    return {str(launch.task): launch for launch in plan.tasks if only(str(launch.task))}


def test_servers_start_first_and_the_evaluator_last():
    plan = build_plan(SPEC, ADDRESSES, RUN, PROGRAM, MACHINE)
    assert list(tasks(plan)) == ["ps:0", "ps:1", "chief:0", "worker:0", "worker:1", "evaluator:0"]
    assert [launch.address for launch in plan.tasks] == ["a:4", "a:5", "a:1", "a:2", "a:3", None]


@pytest.mark.parametrize(
    ("servers", "transport", "who"),
    [
        (["127.0.0.1:4", "localhost:5"], "auto", ["ps:0", "ps:1"]),
        (["127.0.0.1:4", "localhost:5"], "grpc", ["ps:0", "ps:1", "chief:0", "evaluator:0"]),
        (["127.0.0.1:4", "b:5"], "auto", ["ps:0", "ps:1", "chief:0", "evaluator:0"]),
    ],
)
def test_only_who_serves_or_goes_through_a_network_needs_grpc(servers, transport, who):
    addresses = ClusterSpec.from_lists(chief=["127.0.0.1:1"], ps=servers)
    spec = RunSpec(
        cluster=ClusterSection(chief=1, ps=2, evaluator=1), training=training_section(transport=transport)
    )
    plan = build_plan(spec, addresses, RUN, PROGRAM, MACHINE)
    assert [str(launch.task) for launch in plan.tasks if launch.needs_grpc] == who


def test_a_programs_task_reads_back_what_the_plan_says():
    plan = build_plan(SPEC, ADDRESSES, RUN, PROGRAM, MACHINE)
    for launch in plan.tasks:
        assert launch.command == ("/usr/bin/python", "-m", "dtrain.task", "train.py", "--epochs", "3")
        assert (launch.program, launch.arguments, launch.cwd) == (
            Path("train.py"),
            ("--epochs", "3"),
            Path("/home"),
        )
        assignment = TaskAssignment.from_environment({**launch.environment, **launch.private})
        assert assignment.task == launch.task
        assert assignment.cluster == ADDRESSES
        assert assignment.spec == SPEC
        assert (assignment.run_id, assignment.run_dir, assignment.secret) == (
            "run-1",
            Path("/runs/run-1"),
            "s3cret of a launched run",
        )
        assert assignment.launched
        assert "RANK" not in launch.environment


def test_the_evaluator_is_a_task_but_never_in_the_cluster():
    launch = tasks(build_plan(SPEC, ADDRESSES, RUN, PROGRAM, MACHINE))["evaluator:0"]
    config = json.loads(launch.environment["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert config["cluster"] == {"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4", "a:5"]}


def test_another_attempt_changes_its_number_and_its_log_only():
    launch = build_plan(SPEC, ADDRESSES, RUN, PROGRAM, MACHINE).tasks[0]
    again = launch.for_attempt(2)
    assert launch.log == Path("/runs/run-1/tasks/ps-0/attempt-0/output.log")
    assert again.log == Path("/runs/run-1/tasks/ps-0/attempt-2/output.log")
    assert TaskAssignment.from_environment(again.environment).attempt == 2
    assert again.address == launch.address
    assert launch.environment["DTRAIN_ATTEMPT"] == "0"


def test_a_foreign_command_is_told_what_other_frameworks_read():
    plan = tasks(build_plan(SPEC, ADDRESSES, RUN, COMMAND, MACHINE))
    assert plan["chief:0"].command == ("python", "tf.py", "--fast")
    assert plan["chief:0"].arguments == ("tf.py", "--fast")
    assert plan["chief:0"].program is None
    for rank, name in enumerate(["chief:0", "worker:0", "worker:1"]):
        environment = plan[name].environment
        assert (environment["RANK"], environment["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"]) == ("3", "3")
        assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("127.0.0.1", "29999")
    for launch in plan.values():
        assert launch.environment["TF_GRPC_REUSE_PORT"] == "true"
        assert launch.environment["PYTHONUNBUFFERED"] == "1"
    assert plan["ps:0"].environment["RANK"] == "3"  # behind those that train
    assert not {"WORLD_SIZE", "MASTER_PORT"} & set(plan["ps:0"].environment)


@pytest.mark.parametrize("workload", [PROGRAM, COMMAND], ids=["program", "command"])
def test_every_task_is_told_its_place_without_json(workload):
    for name, launch in tasks(build_plan(SPEC, ADDRESSES, RUN, workload, MACHINE)).items():
        role, _, index = name.partition(":")
        told = {key: launch.environment[key] for key in ("DTRAIN_TASK", "DTRAIN_ROLE", "DTRAIN_INDEX")}
        assert told == {"DTRAIN_TASK": name, "DTRAIN_ROLE": role, "DTRAIN_INDEX": index}


@every_row("cores, threads", [(1, 1), (2, 1), (8, 2), (9, 3), (64, 21)])
def test_threads_are_the_cores_shared_by_the_tasks_that_train(cores, threads):
    assert threads_per_task(SPEC, cores) == threads


def test_deterministic_training_uses_one_thread_and_the_users_limits_stay():
    spec = RunSpec(cluster=SPEC.cluster, training=training_section(updates="sync", deterministic=True))
    machine = Machine("python", 64, {"OMP_NUM_THREADS": "7"})
    environment = build_plan(spec, ADDRESSES, RUN, PROGRAM, machine).tasks[0].environment
    assert "OMP_NUM_THREADS" not in environment
    assert {environment[name] for name in THREAD_LIMITS if name != "OMP_NUM_THREADS"} == {"1"}


@pytest.mark.parametrize("workload", [PROGRAM, COMMAND], ids=["program", "command"])
def test_neither_secret_nor_password_is_in_an_environment_or_written_down(workload):
    spec = replace(SPEC, checkpoint=CheckpointSection(remote="s3://user:pass@bucket/run"))
    plan = build_plan(spec, ADDRESSES, RUN, workload, MACHINE)
    written = json.dumps(plan.to_dict())
    assert "s3cret" not in written
    assert "user:pass" not in written
    assert "s3://***@bucket/run" in plan.tasks[0].environment["DTRAIN_SPEC"]
    private = [dict(launch.private) for launch in plan.tasks]
    if workload.foreign:
        assert not any(private)
    else:
        task = TaskAssignment.from_environment({**plan.tasks[0].environment, **private[0]})
        assert (task.secret, task.spec.checkpoint.remote) == (
            "s3cret of a launched run",
            "s3://user:pass@bucket/run",
        )


def test_the_spec_is_resolved_before_it_is_handed_out():
    spec = RunSpec(cluster=SPEC.cluster, training=training_section(staleness_bound=0))
    plan = build_plan(spec, ADDRESSES, RUN, PROGRAM, MACHINE)
    assert plan.spec.training.updates == "sync"
    assert TaskAssignment.from_environment(plan.tasks[0].environment).spec == plan.spec


def test_a_cluster_without_a_chief_ranks_its_workers_from_zero():
    spec = RunSpec(cluster=ClusterSection(worker=2))
    plan = build_plan(spec, ClusterSpec.from_lists(worker=["a:1", "a:2"]), RUN, COMMAND, MACHINE)
    assert [(str(launch.task), launch.environment["RANK"]) for launch in plan.tasks] == [
        ("worker:0", "0"),
        ("worker:1", "1"),
    ]
    assert plan.tasks[0].task == TaskId.parse("worker:0")


@every_row(
    "program, arguments, name",
    [
        ("digits.py", (), "digits"),
        (".a b.py", (), "a-b"),
        ("é.py", (), "run"),
        (None, ("/bin/sh", "-c", "x"), "sh"),
        (None, ("python", "tf.py"), "tf"),
    ],
)
def test_a_run_that_nobody_has_named_is_called_after_what_it_runs(program, arguments, name):
    workload = Workload(Path(program) if program else None, arguments, Path("/"))
    assert workload.named(RunSpec()).name == name
    assert workload.named(RunSpec(name="mine")).name == "mine"


def test_tasks_get_the_variables_of_the_spec_beneath_those_of_dtrain():
    spec = replace(SPEC, environment={"DATA": "s3://me:mine@bucket/x", "OMP_NUM_THREADS": "3", "RANK": "7"})
    for workload in (PROGRAM, COMMAND):
        plan = build_plan(spec, ADDRESSES, RUN, workload, MACHINE)
        chief = tasks(plan)["chief:0"].environment
        assert (chief["DATA"], chief["OMP_NUM_THREADS"]) == ("s3://me:mine@bucket/x", "3")
        assert chief["RANK"] == ("7" if workload is PROGRAM else "0")
        assert plan.to_dict()["tasks"][0]["environment"]["DATA"] == "s3://***@bucket/x"


@pytest.mark.parametrize(("on", "waits_s"), [(On.LOCAL, 60.0), (On.SSH, 90.0), (On.SLURM, 90.0)])
def test_tasks_on_hosts_wait_longer_than_their_launcher_waits_for_a_host(on, waits_s):
    """So the launcher decides first: it starts them elsewhere, or stops the run."""
    spec = replace(SPEC, on=on, wait=WaitSection(start_s=30.0))
    plan = build_plan(spec, ADDRESSES, RUN, PROGRAM, MACHINE)
    for launch in plan.tasks:
        wait = TaskAssignment.from_environment({**launch.environment, **launch.private}).spec.wait
        assert (wait.server_s, wait.leader_s, wait.start_s) == (waits_s, waits_s, 30.0)
    assert plan.spec.wait.server_s == 60.0
