"""A run in the cluster as it is seen from here later: `dtrain status`, `logs`, `stop` and `rm`.

Raise a `RunError` if the cluster does not answer.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.process.plain_text import plain_data
from dtrain.runs.files import RunRecord, write_record
from dtrain.runs.journal import now_text
from dtrain.runs.states import ENDED, LIVE_RUN_STATES, RunState
from dtrain_cli.runs.index import KnownRun, own_record
from dtrain_cli.runs.report import build_report, is_alive
from dtrain_cli.targets.kubernetes.kubectl import ANSWER_S, Kubectl, RunView
from dtrain_cli.targets.kubernetes.run import KubernetesPlace, read_place


def report_there(run: KnownRun, place: KubernetesPlace) -> dict[str, Any]:
    """Return the present report of a run, as `read_report` does; its record here is brought up to date."""
    record = own_record(run.files.directory) or run.record
    leaders: dict[str, Any] = {}
    if record.state in LIVE_RUN_STATES:
        kubectl = Kubectl(place)
        view = kubectl.view()
        _note(run, record, view, ended=view.state is None)
        leader = view.newest.get(place.leading)
        if leader is not None and leader.has_output and leader.state not in ENDED:
            leaders = kubectl.report(leader.name)
    report = {**build_report(run.files, record, {}, {}, True, 0.0), "damaged": []}
    _lay_over(report, plain_data(leaders))
    return report


def _note(run: KnownRun, record: RunRecord, view: RunView, ended: bool) -> None:
    """Write down what the cluster says of a run, unless a command follows it; `ended`: all is gone."""
    note_view(record, view)
    if ended and record.state in LIVE_RUN_STATES:
        record.state = RunState.STOPPED
    if record.state not in LIVE_RUN_STATES and record.ended is None:
        failed = view.failed.exit_code if view.failed else None
        record.exit_code = {RunState.SUCCEEDED: 0, RunState.STOPPED: 143}.get(record.state, failed or 1)
        record.ended = now_text()
    if not is_alive(run.files, record):
        write_record(run.files.run, record)


def note_view(record: RunRecord, view: RunView) -> None:
    newest = {str(task): pod for task, pod in view.newest.items()}
    for task in record.tasks:
        if (pod := newest.get(task.task)) is not None:
            task.state, task.host, task.exit_code = pod.state, pod.node, pod.exit_code
            task.message = pod.message
            task.restarts = view.restarts(pod.task)
    record.state = view.state or record.state


def _lay_over(report: dict[str, Any], leaders: Mapping[str, Any]) -> None:
    """Take over from the leader's report what nothing is known of here; it is another machine's word."""
    rows = leaders.get("tasks")
    sound = [each for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []
    by_name = {str(each.get("task")): each for each in sound}
    for known in (report, *report["tasks"]):
        more = leaders if known is report else by_name.get(known["task"], {})
        known |= {name: more[name] for name in known.keys() & more.keys() if not known[name]}


def stop_there(run: KnownRun, place: KubernetesPlace) -> RunState:
    """Stop a run in order and remove its objects but the disk; return its state."""
    record = own_record(run.files.directory) or run.record
    kubectl = Kubectl(place)
    view = kubectl.view()
    kubectl.delete(place.stop_s + ANSWER_S)
    _note(run, record, view, ended=True)
    return record.state


def clean_clusters(runs: Iterable[KnownRun]) -> Iterator[tuple[bool, str]]:
    """Remove the objects of runs; yield what stays of each, and whether that is an error."""
    for run in runs:
        if (place := read_place(run.files)) is not None:
            try:
                Kubectl(place).delete(ANSWER_S)
                yield False, f"run {place.name} is removed from the cluster{place.what_stays}"
            except RunError as error:
                yield True, f"the objects of run {place.name} may still be in the cluster: {error}"


def show_logs_there(
    place: KubernetesPlace, tasks: Collection[TaskId], last: int | None, follow: bool
) -> bool:
    """Print what the newest pods of tasks have printed, as kubectl does; return whether there was any pod."""
    kubectl = Kubectl(place)
    pods = [pod for task, pod in sorted(kubectl.view().newest.items()) if task in tasks and pod.has_output]
    options = [*(["--prefix"] if len(pods) > 1 else []), *(["-f"] if follow else [])]
    options += [] if last is None else [f"--tail={last}"]
    shown = []
    try:
        for pod in pods:
            shown.append(kubectl.show(pod.name, *options))
            if not follow:  # one after the other
                shown[-1].wait()
        for process in shown:
            process.wait()
    finally:
        for process in shown:
            process.kill()
    return bool(pods)
