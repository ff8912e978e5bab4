"""A cluster without a launcher: every task a command of its own, at addresses of this machine that were free
a moment ago.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from clusters.watching import report_of
from launching import COMMAND, Command, Launcher, free_port, wait_until

SEQPACKET, CONNECTED = "0005", "03"
"""As /proc/net/unix says it."""


class HandCluster:
    """Addresses for so many tasks of each role, and the commands started so far.

    Attributes:
        warm: whether they are forked, not started anew.
    """

    def __init__(self, launcher: Launcher, *, warm: bool = True, **counts: int) -> None:
        self.launcher = launcher
        self.warm = warm
        self.addresses = {
            role: [f"127.0.0.1:{free_port()}" for _ in range(count)] for role, count in counts.items()
        }
        self.tasks = [f"{role}:{index}" for role, count in counts.items() for index in range(count)]
        self.leader = "chief:0" if "chief" in counts else "worker:0"
        self.commands: dict[str, Command] = {}
        self.run_dir = launcher.folder / "run"

    def spec(self, evaluator: int = 0, **sections: Any) -> str:
        """Write a spec with the addresses; its path."""
        path = self.launcher.folder / "spec.json"
        path.write_text(json.dumps({"cluster": {**self.addresses, "evaluator": evaluator}, **sections}))
        return str(path)

    def tf_config(self, task: str) -> str:
        """A task's TF_CONFIG."""
        role, _, index = task.partition(":")
        return json.dumps({"cluster": self.addresses, "task": {"type": role, "index": int(index)}})

    def start(self, task: str, *words: str, environment: dict[str, str] | None = None) -> Command:
        """`dtrain ROLE` with these words, the leader with a run directory of its own."""
        options = ["--run-dir", str(self.run_dir)] if task == self.leader else []
        words = (*COMMAND, task.partition(":")[0], *options, *words)
        return self.start_python(task, *words, environment=environment or {}, warm=self.warm)

    def start_python(self, task: str, *words: str, **options: Any) -> Command:
        """A task by plain Python."""
        self.commands[task] = self.launcher.run(*words, **options)
        return self.commands[task]

    def start_all(self, start: Callable[[str], Command], *others: str) -> None:
        """Start every task, the leader when all others are there: alone it might be done before they have
        come.
        """
        for task in (*self.tasks, *others):
            if task != self.leader:
                start(task)
        wait_until(lambda: all(map(self._has_joined, self.commands)), "all tasks but the leader")
        start(self.leader)

    def _has_joined(self, task: str) -> bool:
        """Whether a task is connected to ps:0: by a socket without a name of its own. It must not end
        before.
        """
        process = self.commands[task].process
        assert process.poll() is None, (task, process.communicate())
        lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        connected = {
            f"socket:[{line[6]}]" for line in lines if line[4:6] == [SEQPACKET, CONNECTED] and len(line) == 7
        }
        return task == "ps:0" or not connected.isdisjoint(_open_files(process.pid))

    def end(self) -> dict[str, int]:
        """Wait for the end of every task: their exit codes. Nothing that they started is left."""
        codes = {task: command.end() for task, command in self.commands.items()}
        for command in self.commands.values():
            command.wait_gone()
        return codes

    def succeed(self) -> None:
        """Every task ends by itself, with 0."""
        codes = self.end()
        said = {task: command.err for task, command in self.commands.items() if command.err}
        assert codes == dict.fromkeys(self.commands, 0), said

    def status(self) -> dict[str, Any]:
        """What `dtrain status --json` says of the leader's run directory."""
        return report_of(self.run_dir)


def _open_files(pid: int) -> Iterator[str]:
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            yield str(each.readlink())
