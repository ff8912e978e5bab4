"""The words for tasks that were lost on the way: ``worker:1 failed at step 137: ValueError: bad batch (log: ...)``. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dtrain_cli.task_life import TaskLife

NAMED_MAX = 5
WORD_MAX = 200


def first_line(message: str) -> str:
    """Return the first line of a message, short enough for a line of the console."""
    line = message.partition("\n")[0]
    return line if len(line) <= WORD_MAX else f"{line[:WORD_MAX]} ..."


def lost_text(task: Mapping[str, Any]) -> str:
    """Return what became of one lost task of a run's report, in one line."""
    state = "was stopped" if task["state"] == "stopped" else "failed"
    where = "" if task["step"] is None else f" at step {task['step']}"
    log = f" (log: {task['log']})" if task["log"] else ""
    return f"{task['task']} {state}{where}: {first_line(task['message'])}{log}"


def lost_on_the_way(lives: Iterable[TaskLife]) -> str:
    """Return all tasks that a run has lost, the first one first; empty if it has lost none."""
    lost = sorted((life for life in lives if life.lost), key=lambda life: life.lost.monotonic_s if life.lost else 0.0)
    alike: dict[tuple[str, str], list[TaskLife]] = {}
    for life in lost:
        alike.setdefault((life.state, life.lost.message if life.lost else ""), []).append(life)
    groups = list(alike.values())
    texts = [_group_text(group) for group in groups[:NAMED_MAX]]
    more = sum(map(len, groups[NAMED_MAX:]))
    return "; ".join([*texts, *([f"{more} tasks more were lost"] if more else [])])


def _group_text(lives: Sequence[TaskLife]) -> str:
    """Return what became of tasks that were lost for the same reason."""
    first, *others = lives
    why = first.lost
    assert why is not None
    text = lost_text({"task": why.task, "state": first.state, "step": why.step, "message": why.message, "log": why.log})
    names = ", ".join(str(life.task) for life in others[:NAMED_MAX])
    more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
    return f"{text}, likewise {names}{more}" if others else text
