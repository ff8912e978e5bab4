"""A task as process 1 of a container: the kernel drops every signal for which it has no handler."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters.watching import LINE
from launching import free_port, wait_until


class Container:
    """A namespace of processes whose first is a task; stderr goes to a file."""

    def __init__(self, folder: Path, role: str) -> None:
        program = [] if role == "ps" else [LINE]
        self._said = folder / "stderr"
        server, worker = (f"127.0.0.1:{free_port()}" for _ in range(2))
        hosts = ["--ps_hosts", server, "--worker_hosts", worker, "--task_index", "0"]
        words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words += [sys.executable, "-m", "dtrain_cli.main", role, *hosts, *program]
        with self._said.open("w") as file:
            self.process = subprocess.Popen(words, cwd=folder, stderr=file)
        wait_until(lambda: self._children(), "a process in the container")
        self.pid = int(self._children()[0])
        # Before it runs Python the process is a fork of unshare, which blocks SIGTERM around the fork.
        wait_until(self._is_python, "Python as process 1")

    def _children(self) -> list[str]:
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()

    def _is_python(self) -> bool:
        return Path(f"/proc/{self.pid}/cmdline").read_bytes().startswith(sys.executable.encode() + b"\0")

    def hears_sigterm(self) -> bool:
        """Return whether SIGTERM has a handler, or waits for one."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        masks = re.findall(r"Sig(?:Blk|Cgt):\s*(\w+)", status)
        return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)

    def waits(self) -> bool:
        """Return whether the task has come to its first wait."""
        return ": waits for " in self._said.read_text()

    def end(self) -> int:
        """Return the exit code of process 1."""
        return self.process.wait(60)


@pytest.fixture(params=["ps", "worker"])
def container(request, tmp_path) -> Iterator[Container]:
    if os.getuid() or not shutil.which("unshare"):
        pytest.skip("namespaces of processes need root, and the command unshare")
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("this machine lets no test have namespaces of processes")
    container = Container(tmp_path, request.param)
    yield container
    container.process.kill()
    container.process.wait()


def test_process_1_hears_the_order_to_stop_from_when_python_has_started(container):
    wait_until(container.hears_sigterm, "a handler")
    while not container.waits():
        assert container.hears_sigterm()
        time.sleep(0.001)  # a look takes as long as this: it leaves the task half of a core
    os.kill(container.pid, signal.SIGTERM)
    assert container.end() == 143


def test_process_1_leaves_though_it_is_told_while_it_starts(container):
    wait_until(container.hears_sigterm, "a handler")
    os.kill(container.pid, signal.SIGTERM)
    assert container.end() == 143
