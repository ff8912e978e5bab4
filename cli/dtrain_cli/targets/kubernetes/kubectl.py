"""The command `kubectl`, which knows the cluster and how to log in there."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtrain.errors import RunError
from dtrain.process.plain_text import plain
from dtrain_cli.targets.kubernetes.manifests import json_text
from dtrain_cli.targets.kubernetes.place import KubernetesPlace
from dtrain_cli.targets.kubernetes.pod import CONTAINER, RUN_LABEL
from dtrain_cli.targets.kubernetes.view import RunView, view_of

ANSWER_S = 60.0
"""The longest wait for an answer of the cluster."""
_SHOWN = 500
_LOG_LINE = re.compile(r"[EWIF][0-9]{4} ")


class Kubectl:
    """One run, as kubectl reaches it.

    Raises:
        RunError: kubectl is not installed. Methods: it failed; its own words say why.
    """

    def __init__(self, place: KubernetesPlace) -> None:
        if shutil.which("kubectl") is None:
            raise RunError(
                "kubectl: no such command; install it, or apply what `dtrain plan --on kubernetes` prints "
                "on a machine that has it"
            )
        self.place = place
        self._base = ["kubectl"]
        self._base += ["--context", place.context] if place.context else []
        self._base += ["--namespace", place.namespace] if place.namespace else []
        self._label = f"{RUN_LABEL}={place.name}"

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Create or change objects; their text goes through a pipe, for it holds secrets."""
        self._run(["apply", "-f", "-"], json_text(objects))

    def look(self) -> RunView:
        """Return the state of the run."""
        kinds = "pods,jobs.batch" + (",jobsets.jobset.x-k8s.io" if self.place.jobset else "")
        answer = self._run(["get", kinds, "-l", self._label, "-o", "json"])
        try:
            return view_of(json.loads(answer)["items"], self.place.leading)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RunError("kubectl get: expected objects in JSON, found something else") from None

    def follow(self, pod: str, log: Path) -> subprocess.Popen[bytes]:
        """Append the output of a pod to a file until the pod or the returned process ends."""
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as file:
            return subprocess.Popen(
                [*self._base, "logs", "-f", pod, "-c", CONTAINER],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is the launcher's
            )

    def output(self, pod: str, last: int | None, follow: bool) -> subprocess.Popen[bytes]:
        """Start to read the output of a pod; the caller reads its stdout."""
        words = ["logs", pod, "-c", CONTAINER, *([f"--tail={last}"] if last is not None else [])]
        return subprocess.Popen(
            [*self._base, *words, *(["-f"] if follow else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            process_group=0,
        )

    def report(self, pod: str) -> dict[str, Any] | None:
        """Return what `dtrain status --json` says in the leader's pod; None where it says nothing."""
        if self.place.directory is None:
            return None
        words = ["dtrain", "status", "--json", self.place.directory]
        try:
            found = json.loads(self._run(["exec", pod, "-c", CONTAINER, "--", *words]))
        except (RunError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def suspend(self) -> None:
        """End the pods that still run and keep those that have ended, with their output."""
        if not self.place.jobset:  # a JobSet has ended its pods itself
            patch = json.dumps({"spec": {"suspend": True}})
            jobs = self._run(["get", "jobs.batch", "-l", self._label, "-o", "name"]).split()
            for job in jobs:
                self._run(["patch", job, "--type=merge", "-p", patch])

    def delete(self, wait_s: float) -> None:
        """Stop all tasks in order and remove every object of the run but its disk.

        The names of the pods stay known until the last of them has ended.
        """
        kind = "jobsets.jobset.x-k8s.io" if self.place.jobset else "jobs.batch"
        self._run(
            ["delete", kind, "-l", self._label, "--cascade=foreground", f"--timeout={wait_s:.0f}s"],
            within_s=wait_s + ANSWER_S,
        )
        self._run(["delete", "services,configmaps,secrets", "-l", self._label, "--wait=false"])

    def _run(self, words: Sequence[str], text: str | None = None, within_s: float = ANSWER_S) -> str:
        command = [*self._base, *words]
        try:
            done = subprocess.run(
                command,
                input=None if text is None else text.encode(),
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                timeout=within_s,
                process_group=0,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"kubectl {words[0]}: no answer of the cluster within {within_s:g} s") from None
        if done.returncode != 0:
            said = plain(_last_words(done.stderr.decode(errors="replace")))[:_SHOWN]
            raise RunError(f"kubectl {words[0]}: {said or f'exit code {done.returncode}'}")
        return done.stdout.decode(errors="replace")


def _last_words(stderr: str) -> str:
    """Return the last line of kubectl that is no log line of a library: ``E1123 01:06:42.5 ...``."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not _LOG_LINE.match(line)), "")
