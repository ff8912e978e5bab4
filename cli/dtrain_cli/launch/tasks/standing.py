"""The place at which every task of a run stood when a deadline of the launcher passed."""

import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import dtrain
from dtrain.cluster import TaskId
from dtrain_cli.launch.tasks.task_life import TaskLife

TAIL_BYTES = 1 << 16
_STACK = re.compile(
    r"^(?:Current thread|Thread) .*\(most recent call first\):\n((?:  File .*\n)+)", re.MULTILINE
)
_FRAME = re.compile(r'  File (".*", line \d+) in (.*)')
_NOT_THE_PROGRAMS = (sysconfig.get_path("stdlib"), str(Path(dtrain.__file__).parent))


class TaskPlaces:
    """The place of each task, and after the end the lines at which tasks stood that were asked for stacks."""

    def __init__(self, lives: Iterable[TaskLife], asked: Iterable[TaskLife]) -> None:
        self._places = {life.task: _place(life) for life in lives}
        self._stacks = {
            life.task: (life.launch.log, _size(life.launch.log), not life.is_up) for life in asked
        }

    def lines(self) -> list[str]:
        """Return one line a task. Those who were asked must have ended."""
        width = max((len(str(task)) for task in self._places), default=0)
        return [
            f"{task!s:<{width}}  {place}{self._frame(task)}" for task, place in sorted(self._places.items())
        ]

    def _frame(self, task: TaskId) -> str:
        frame = innermost_frame(*self._stacks[task]) if task in self._stacks else None
        return f", at {frame}" if frame else ""


def _place(life: TaskLife) -> str:
    said = life.status
    words = str(life.state)
    if said is not None and said.step is not None:
        words += f" at step {said.step}" + (f" of {said.max_steps}" if said.max_steps else "")
    if said is not None and said.waiting_for and life.has_process:
        words += f", waits for {said.waiting_for}"
    return words


def innermost_frame(log: Path, begin: int = 0, or_any: bool = True) -> str | None:
    """Return the innermost line of the program in the main thread's stack that a task has written to its log.

    Args:
        log: of the task.
        begin: where to look, in bytes.
        or_any: whether the innermost line of all is returned where no line is the program's own.
    """
    try:
        with open(log, "rb") as file:
            file.seek(max(begin, log.stat().st_size - TAIL_BYTES))
            stacks = _STACK.findall(file.read().decode(errors="replace"))
    except OSError:
        return None
    frames = [
        _FRAME.match(line) for line in (stacks[-1] if stacks else "").splitlines()
    ]  # the main thread is the last
    found = [(frame[1], frame[2]) for frame in frames if frame is not None]
    theirs = [frame for frame in found if not frame[0][1:].startswith((*_NOT_THE_PROGRAMS, "<frozen"))]
    return next((f"{place} in {name}" for place, name in theirs or (found if or_any else ())), None)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0
