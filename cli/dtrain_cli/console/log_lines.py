"""Following the tasks' log files: whole lines, whatever the bytes, with what is left out counted.

The files are the truth and are written by the tasks alone; the console follows them as far as its reader
keeps up.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from dtrain.cluster import TaskId
from dtrain.process.plain_text import CONTROLS

LAG_BYTES_MAX = 8 << 20
LINE_BYTES_MAX = 8 << 10
_CHUNK_BYTES = 1 << 18
_STACK = re.compile(rb"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CONTROLS = re.compile(rf"\x1b\[[0-9;?]*[ -/]*[@-~]|[\n{CONTROLS}]")


@dataclass
class LogTail:
    """The console's position in one attempt's log, or in the output of a whole launch (no task).

    `without_stacks` hides the stacks that all tasks write when training stands still.
    """

    task: TaskId | None
    path: Path
    without_stacks: bool = False
    line_bytes_max: int | None = LINE_BYTES_MAX
    _in_stack: bool = False
    _offset: int = 0
    _partial: bytearray = field(default_factory=bytearray, repr=False)

    def read(self, to_the_end: bool = False) -> list[str]:
        """Return the next complete lines, about a hundred thousand bytes at most.

        If the reader of the console is too slow, most are left out, and the first line says how many.
        `to_the_end` says that the task is gone: the last line counts also without a newline.
        """
        size = self._size()
        shown = []
        if size - self._offset > LAG_BYTES_MAX and (left_out := self._skip(size - LAG_BYTES_MAX // 2)):
            shown = [f"[{left_out} lines not shown; see {self.path}]"]
        while not shown and size > self._offset and (data := self._read(_CHUNK_BYTES)):
            ended, newline, rest = data.rpartition(b"\n")
            if newline:
                shown = self._shown(bytes(self._partial + ended).split(b"\n"))
                self._partial.clear()
            self._partial += rest  # in place: a line of many megabytes comes in many pieces
        if to_the_end and not shown and self._partial:
            shown = self._shown([bytes(self._partial)])
            self._partial.clear()
        return shown

    def _shown(self, lines: list[bytes]) -> list[str]:
        named = f"dtrain: {self.task}: "  # the line's label says it too
        texts = [_text(line, self.line_bytes_max) for line in lines if not self._is_stack(line)]
        return [f"dtrain: {text[len(named) :]}" if text.startswith(named) else text for text in texts]

    def _is_stack(self, line: bytes) -> bool:
        if line.startswith(b"Fatal Python error"):  # a crash prints this stack, not a request for it
            self.without_stacks = False
        frame = self._in_stack and (not line or line.startswith(b"  File "))
        self._in_stack = self.without_stacks and (frame or _STACK.match(line) is not None)
        return self._in_stack

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def _read(self, count: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read(count)
        except OSError:
            return b""
        self._offset += len(data)
        return data

    def _skip(self, until: int) -> int:
        """Leave lines out up to the first that begins after `until`; return how many."""
        left_out = 0
        while self._offset < until and (data := self._read(1 << 20)):
            if count := data.count(b"\n"):
                left_out += count
                self._partial.clear()
            self._partial += data.rpartition(b"\n")[2]
        return left_out


def _text(line: bytes, bytes_max: int | None) -> str:
    """Return a line as a terminal shows it at the end: what follows the last carriage return, plainly."""
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    cut = (
        f" ... ({len(shown) - bytes_max} more bytes)"
        if bytes_max is not None and len(shown) > bytes_max
        else ""
    )
    text = shown[:bytes_max].decode(errors="replace")
    return _CONTROLS.sub(lambda match: match[0] if _COLOURS.fullmatch(match[0]) else "", text) + cut


def without_colours(text: str) -> str:
    return _COLOURS.sub("", text)


def collapse(lines: list[tuple[TaskId, str]]) -> list[tuple[str, str]]:
    """Join lines that several tasks printed together: ``worker x4``, or ``tasks x6`` of several roles.

    The n-th occurrence in one task is matched with the n-th of another.
    """
    counts: dict[tuple[TaskId, str], int] = defaultdict(int)
    tasks: dict[tuple[str, int], list[TaskId]] = defaultdict(list)
    for task, line in lines:
        counts[task, line] += 1
        tasks[line, counts[task, line]].append(task)
    return [(_label(who), line) for (line, _), who in tasks.items()]


def _label(who: list[TaskId]) -> str:
    if len(who) == 1:
        return str(who[0])
    roles = {task.role for task in who}
    return f"{min(roles) if len(roles) == 1 else 'tasks'} x{len(who)}"
