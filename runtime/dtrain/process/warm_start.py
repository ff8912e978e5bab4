"""The agreement by which a launcher gets its fork server from a process that has imported everything already.

`dtrain fork-server SOCKET` is that process, and DTRAIN_FORK_SERVER names its socket. A launcher connects and
sends four descriptors: the end of a socket pair for orders, its life line, its stderr, and a memory that
holds a `WarmStart`. The answer is `Forked`, or `Differs` where a fork would inherit what the launcher does
not have; then the launcher starts a fork server of its own.
"""

import os
import sys
from pathlib import Path

import msgspec

VARIABLE = "DTRAIN_FORK_SERVER"
DESCRIPTORS = 4
PATIENCE_S = 5.0
"""How long either end waits for the other's message, and a launcher for the end of what was forked for it."""
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "OPENBLAS_", "MKL_", "OMP_", "BLIS_", "NPY_")
"""How the names of variables begin that an interpreter or a library reads once."""
_INHERITED = {"Umask", "Uid", "Gid", "Groups", "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed"}
"""The lines of /proc/PID/status that a fork inherits."""


class WarmStart(msgspec.Struct, frozen=True):
    """The request of a launcher.

    Attributes:
        surroundings: what `surroundings` returns in the launcher.
        environment: the launcher's variables.
        cwd: its working directory.
    """

    surroundings: list[str]
    environment: dict[str, str]
    cwd: str


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """The fork server of one launcher has been forked.

    Attributes:
        pid: its process.
        keeper: its parent, which kills all that the fork server leaves when it ends, and then ends too.
    """

    pid: int
    keeper: int


class Differs(msgspec.Struct, frozen=True, tag="differs"):
    """The launcher's surroundings hold something that those of the warm process do not."""

    what: str


def name_of_forked(launcher: int | None) -> str:
    """Return the name of the processes that are forked for a launcher, as it stands in /proc/PID/comm."""
    return f"dtrain-{launcher}"


def surroundings() -> list[str]:
    """Return what this process inherits and no message can change: interpreter, user, limits, namespaces."""
    own = Path("/proc/self")
    kept = [line for line in (own / "status").read_text().splitlines() if line.split(":")[0] in _INHERITED]
    for name in ("limits", "cgroup"):
        kept += [f"{name}: {line}" for line in (own / name).read_text().splitlines()]
    kept += [str(path.readlink()) for path in (own / "root", *sorted((own / "ns").iterdir()))]
    kept += [str(Path(each).absolute()) for each in os.environ.get("PYTHONPATH", "").split(":") if each]
    kept += [f"{name}={value}" for name, value in os.environ.items() if name.startswith(_READ_AT_START)]
    return [sys.executable, f"nice: {os.nice(0)}", *sorted(kept)]
