"""Tells stories in processes of their own, several at once, in the order in which they were begun."""

import contextlib
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from launching import WARM, warm_fork_server

AT_ONCE = (os.cpu_count() or 1) + 1
"""Most of a story is waiting."""


class Telling:
    """Runs `tell.py` for each story, in a folder of its own below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fork_server = warm_fork_server()
        self._children: set[subprocess.Popen[str]] = set()
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def begin(self, kind: str, seed: int) -> Future[tuple[int, str]]:
        """Tell a story as soon as there is room; its exit code and what it printed."""
        return self._pool.submit(self._tell, kind, seed)

    def _tell(self, kind: str, seed: int) -> tuple[int, str]:
        folder = self.folder / f"{kind}-{seed}"
        folder.mkdir()
        words = [sys.executable, str(Path(__file__).parent / "tell.py"), kind, str(seed), str(folder)]
        environment = {**os.environ, WARM: self._fork_server}
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as child:
            self._children.add(child)
            out, _ = child.communicate()
        self._children.discard(child)
        return child.returncode, out

    def close(self) -> None:
        """End what is still told."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        self._pool.shutdown()
