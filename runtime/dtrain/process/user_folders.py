"""The folders of this user in which programs keep their files, as XDG has them."""

import os
from pathlib import Path


def state_home() -> Path:
    """Return XDG's folder for what programs of this user keep; raise a `RuntimeError` if there is no home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
