"""Running a `dtrain` command to its end."""

import os
import subprocess
import sys

DTRAIN = [sys.executable, "-m", "dtrain_cli.main"]


def dtrain(*arguments: str, environment=None, **kwargs) -> subprocess.CompletedProcess:
    clean = {
        name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "DTRAIN_RUNS_DIR")
    }
    return subprocess.run(
        [*DTRAIN, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=clean | (environment or {}),
        check=False,
        **kwargs,
    )
