"""`dtrain worker --join RUN`: one more worker for a run that is training, from the run's own files."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import RunSpec, SingleSection
from dtrain.errors import RunError, SpecError
from dtrain.process.assignment import TaskAssignment
from dtrain.process.tensorflow.tf_config import read_tf_config
from dtrain.process.threads import USERS_LIMIT
from dtrain.runs.files import JoinRecord, RunFiles, read_record
from dtrain.runs.states import LIVE_RUN_STATES
from dtrain_cli.plan.threads import limits_beside
from dtrain_cli.runs.index import KnownRun
from dtrain_cli.runs.report import is_alive


def joining_worker(
    run: KnownRun, environment: Mapping[str, str], security: Mapping[str, Any]
) -> TaskAssignment:
    """Return the place of one more worker: the first index above all workers that the run has had.

    Args:
        run: the run, on this machine.
        environment: the user's variables.
        security: fields of that section which the worker's own options give.

    Raises:
        RunError: the run has ended, or is none that a worker can join.
        SpecError: it does not train on parameter servers.
    """
    files = run.files
    name = run.record.run
    if run.record.state not in LIVE_RUN_STATES or not is_alive(files, run.record):
        raise RunError(
            f"run {name} cannot be joined: its state is {run.record.state}; "
            "a worker joins a run that is training"
        )
    offer = read_record(files.join, JoinRecord)
    if offer is None:
        raise RunError(f"run {name} accepts no workers: it runs a command that is not a dtrain program")
    spec = read_record(files.spec, RunSpec)
    if spec is None or isinstance(spec.training, SingleSection):
        raise SpecError(f"run {name} does not train on parameter servers; only such a run can be joined")
    spec = replace(spec, security=replace(spec.security, **security)).secured(environment)
    cluster, _ = read_tf_config(msgspec.json.encode({"cluster": offer.cluster}).decode())
    return TaskAssignment(
        task=_free_place(files, cluster),
        cluster=cluster,
        spec=spec,
        run_id=offer.run_id,
        run_dir=files.directory,
        secret=offer.secret,
        launched=offer.launched,
        tls=offer.tls,
    )


def threads_beside(assignment: TaskAssignment, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the thread limits of one more worker on a launch's machine: its share of the cores."""
    if not assignment.launched or USERS_LIMIT in environment:
        return {}
    training = assignment.cluster.count(Role.CHIEF) + assignment.cluster.count(Role.WORKER) + 1
    return limits_beside(environment, str(max(1, len(os.sched_getaffinity(0)) // training)))


def _free_place(files: RunFiles, cluster: ClusterSpec) -> TaskId:
    """Take the first free index by making its folder: workers that join at once get different ones."""
    index = cluster.first_joined
    while True:
        task = TaskId(Role.WORKER, index)
        try:
            files.task(task).mkdir(parents=True)
        except FileExistsError:
            index += 1
            continue
        except OSError as error:
            raise RunError(f"cannot write to {files.directory}: {os.strerror(error.errno or 0)}") from None
        return task
