"""The text for tasks that a run has lost: ``worker:1 failed at step 137: ValueError: bad batch``. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dtrain.process.plain_text import plain
from dtrain.runs.files import FailureRecord
from dtrain.runs.states import TaskState

NAMED_MAX = 5
WORD_MAX = 200


def first_line(message: str) -> str:
    """Return the first line of a message, short enough for a line of the console."""
    line = plain(message.partition("\n")[0])
    return line if len(line) <= WORD_MAX else f"{line[:WORD_MAX]} ..."


def lost_tasks(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tasks of a report that were lost for good."""
    return [
        task
        for task in report["tasks"]
        if task["message"] and task["state"] in (TaskState.FAILED, TaskState.STOPPED)
    ]


def lost_texts(tasks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what became of lost tasks of a report, one text for all that were lost for the same reason."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for task in tasks:
        alike.setdefault((task["state"], task["message"]), []).append(task)
    return [_text(group) for group in alike.values()]


def lost_on_the_way(
    lost: Iterable[tuple[TaskState, FailureRecord]], joined: Iterable[Mapping[str, Any]] = ()
) -> str:
    """Return all tasks that a run has lost, in the order of their failures; empty if it has lost none.

    Args:
        lost: the state and the failure of each lost task that the launcher has started.
        joined: the workers that have joined the run and were lost, as a report has them; they come last.
    """
    own = [
        {"task": why.task, "state": state, "step": why.step, "message": why.message, "log": why.log}
        for state, why in sorted(lost, key=lambda entry: entry[1].order)
    ]
    texts = lost_texts([*own, *joined])
    more = len(texts) - NAMED_MAX
    return "; ".join(
        [*texts[:NAMED_MAX], *([f"{more} more reasons: `dtrain status` shows them"] if more > 0 else [])]
    )


def _text(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Return ``worker:1 failed at step 137: ValueError: bad batch (log: ...), likewise worker:2``."""
    first, *others = tasks
    state = "was stopped" if first["state"] == TaskState.STOPPED else "failed"
    where = "" if first["step"] is None else f" at step {first['step']}"
    log = f" (log: {first['log']})" if first["log"] else ""
    text = f"{first['task']} {state}{where}: {first_line(first['message'])}{log}"
    names = ", ".join(str(task["task"]) for task in others[:NAMED_MAX])
    more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
    return f"{text}, likewise {names}{more}" if others else text
