"""A cluster without a launcher: every task a command of its own, at addresses of this machine that were free a moment ago."""

import json
from typing import Any

import portpicker
from clusters.watching import report_of
from launching import Command, Launcher


class HandCluster:
    """Addresses for so many tasks of each role, and the commands started so far."""

    def __init__(self, launcher: Launcher, **counts: int) -> None:
        self.launcher = launcher
        self.addresses = {
            role: [f"127.0.0.1:{portpicker.pick_unused_port()}" for _ in range(count)] for role, count in counts.items()
        }
        self.tasks = [f"{role}:{index}" for role, count in counts.items() for index in range(count)]
        self.commands: dict[str, Command] = {}
        self.run_dir = launcher.folder / "run"

    def spec(self, **sections: Any) -> str:
        """Write a spec with the addresses; its path."""
        path = self.launcher.folder / "spec.json"
        path.write_text(json.dumps({"cluster": {**self.addresses, "evaluator": 1}, **sections}))
        return str(path)

    def tf_config(self, task: str) -> str:
        """A task's TF_CONFIG."""
        role, _, index = task.partition(":")
        return json.dumps({"cluster": self.addresses, "task": {"type": role, "index": int(index)}})

    def start(self, task: str, *words: str, environment: dict[str, str] | None = None) -> Command:
        """`dtrain ROLE` with these words, the leader with a run directory of its own."""
        options = ["--run-dir", str(self.run_dir)] if task == self.leader else []
        command = self.launcher.dtrain(task.partition(":")[0], *options, *words, environment=environment or {})
        self.commands[task] = command
        return command

    @property
    def leader(self) -> str:
        """Who leads."""
        return "chief:0" if "chief" in self.addresses else "worker:0"

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
        return report_of(self.launcher, self.run_dir)
