"""The options of `dtrain launch` as the command line gives them: nothing is read or checked yet."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dtrain_cli.spec import SpecTree


class LaunchOptions(msgspec.Struct, frozen=True):
    """The options and arguments of `dtrain launch`.

    Attributes:
        spec: the spec file; None for the embedded default, or what `earlier` says.
        earlier: the settings of the run that is resumed, where no spec file is named.
        sets: each `--set KEY=VALUE`.
        shortcuts: the values of `dtrain_cli.spec.SHORTCUTS`, None where not given.
        arguments: the program's arguments, or the whole argv of a foreign command.
        resume: None: start anew; "": resume the newest run of this name; else the run to resume.
        timeout: seconds until the run is stopped; None for never.
        stall_timeout: seconds without progress after which the tasks show their stacks, and for which others
            wait for a replica that is stuck.
        queue: whether it waits in line; `cores` and `memory` (bytes) are what it claims then.
        prometheus: the textfile that is kept up to date about the run.
        given: the options as they were written, for a command line that goes on with the run.
        behind: what was written behind them.
    """

    spec: Path | None = None
    earlier: SpecTree | None = None
    sets: tuple[str, ...] = ()
    shortcuts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    program: Path | None = None
    arguments: tuple[str, ...] = ()
    runs_dir: Path | None = None
    run_dir: Path | None = None
    resume: str | None = None
    from_scratch: bool = False
    timeout: float | None = None
    stall_timeout: float = 300.0
    detach: bool = False
    json: bool = False
    prometheus: Path | None = None
    queue: bool = False
    cores: int | None = None
    memory: int | None = None
    given: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()

    def line_to_resume(self, run_id: str) -> str:
        kept = list(self.given)
        if self.resume is not None:
            kept.remove(f"--resume={self.resume}")
        if self.from_scratch:
            kept.remove("--from-scratch")
        resume = ["--resume"] if self.run_dir is not None else ["--resume", run_id]
        return shlex.join(["dtrain", "launch", *resume, *kept, *self.behind])

    def line_to_report(self, run_id: str) -> str:
        if self.run_dir is not None:
            return shlex.join(["dtrain", "report", str(self.run_dir)])
        kept = [] if self.runs_dir is None else ["--runs-dir", str(self.runs_dir)]
        return shlex.join(["dtrain", "report", *kept, run_id])

    @property
    def foreign(self) -> bool:
        return self.program is None
