"""The journal of a run: an event a line."""

import json
import time
from datetime import UTC, datetime
from typing import Any

from dtrain.formats.masked_urls import masked
from dtrain.runs.files import RunFiles


def now_text() -> str:
    """Return the time of day in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append_event(files: RunFiles, kind: str, **facts: Any) -> None:
    """Append one line, for example ``{"event": "exited", "task": "worker:0", "status": -9, ...}``.

    Raises:
        OSError: it cannot be written.
    """
    line = json.dumps({"time": now_text(), "monotonic_s": round(time.monotonic(), 4), "event": kind, **facts})
    with open(files.journal, "a", encoding="utf-8") as file:
        file.write(masked(line) + "\n")
