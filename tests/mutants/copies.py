"""A copy of the tree in which one bug at a time is planted, and the tests run in it."""

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
COPIED = [
    *("runtime", "cli", "tests", "docs", "examples", "cluster_specs", "fuzz"),
    *("conftest.py", "pyproject.toml", "README.md"),
]
PR_SET_CHILD_SUBREAPER = 36
AT_LEAST_S = 60.0
TIMES = 5
"""A run of tests that takes so many times as long as without a bug hangs."""


@dataclass(frozen=True)
class Run:
    """What became of some tests.

    Attributes:
        failed: the first test that did, or why the run ended; None: all passed.
        seconds: how long it took.
    """

    failed: str | None
    seconds: float


class Copy:
    """The tree once more, below a temporary folder."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self._workers = workers
        self._log = folder / "log"
        self._usual: dict[tuple[str, ...], Run] = {}
        self._sources: dict[str, str] = {}
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
            else:
                shutil.copy(source, folder / name)
        python_path = os.pathsep.join(str(folder / name) for name in ("runtime", "cli"))
        self._environment = {
            **os.environ,
            "PYTHONPATH": python_path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(folder / "tmp"),
        }
        (folder / "tmp").mkdir()
        self._compile()
        self._is_imported()

    def _compile(self) -> None:
        """Bytecode that is believed by the text's hash: a file is changed more than once a second."""
        command = [
            sys.executable,
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode",
            "checked-hash",
            "runtime",
            "cli",
        ]
        subprocess.run(command, cwd=self.folder, check=True)

    def _is_imported(self) -> None:
        command = [
            sys.executable,
            "-c",
            "import dtrain, dtrain_cli; print(dtrain.__file__, dtrain_cli.__file__)",
        ]
        found = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=True
        ).stdout
        if any(not file.startswith(str(self.folder)) for file in found.split()):
            raise RuntimeError(f"the copy in {self.folder} is not what is imported, but {found}")

    def path(self, file: str) -> Path:
        """Return where a file is: below ``runtime/dtrain``, or below ``cli`` if its name begins with ``dtrain_cli``."""
        return self.folder / (f"cli/{file}" if file.startswith("dtrain_cli/") else f"runtime/dtrain/{file}")

    def source(self, file: str) -> str:
        """Return the text of a file as it is without a bug; empty where there is none."""
        path = self.path(file)
        return path.read_text() if path.exists() else ""

    def sources(self) -> dict[str, str]:
        """Return the texts of all files by their names."""
        if not self._sources:
            for root, start in (("runtime/dtrain", ""), ("cli/dtrain_cli", "dtrain_cli/")):
                top = self.folder / root
                self._sources |= {
                    start + path.relative_to(top).as_posix(): path.read_text()
                    for path in sorted(top.rglob("*.py"))
                }
        return self._sources

    @contextlib.contextmanager
    def with_bug(self, file: str, text: str) -> Iterator[None]:
        """Put this text in the file's place for a while."""
        path = self.path(file)
        before = path.read_text()
        path.write_text(text)
        try:
            yield
        finally:
            path.write_text(before)

    def usual(self, tests: Sequence[str]) -> Run:
        """Run tests without a bug, once."""
        if tuple(tests) not in self._usual:
            self._usual[tuple(tests)] = self.run(tests, 1800.0)
        return self._usual[tuple(tests)]

    def limit_s(self, tests: Sequence[str]) -> float:
        """Return how long tests may take with a bug."""
        return max(AT_LEAST_S, TIMES * self.usual(tests).seconds)

    def run(self, tests: Sequence[str], limit_s: float) -> Run:
        """Run tests until the first fails; a run that takes too long has failed."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            f"-n{self._workers}",
            *tests,
        ]
        begun_s = time.monotonic()
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end_all_children()
        seconds = time.monotonic() - begun_s
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        if code == 0:
            return Run(None, seconds)
        text = self._log.read_text(errors="replace")
        first = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        why = "hung" if code is None else first[1] if first else f"pytest ended with {code}: {text[-300:]}"
        return Run(why, seconds)


@contextlib.contextmanager
def copied(workers: int) -> Iterator[Copy]:
    """Copy the tree, in which so many workers run the tests; the copy is removed afterwards."""
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="dtrain-mutants-") as folder:
        yield Copy(Path(folder), workers)


def adopt_orphans() -> None:
    """Become the parent of whatever the tests leave behind, so that it is found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_all_children() -> None:
    """Kill every process that was started here, and theirs, by its id."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=5.0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
