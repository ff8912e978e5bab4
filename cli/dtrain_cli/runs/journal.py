"""The files of a launch for readers: the event journal, and run.json, the state of run and processes."""

from collections.abc import Callable
from typing import Any

from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, write_record
from dtrain.runs.journal import append_event, now_text
from dtrain.runs.states import RunState


class Journal:
    """The writer of both; `record` is what run.json will say. A full disk is reported once, no more."""

    def __init__(self, files: RunFiles, record: RunRecord, warn: Callable[[str], None]) -> None:
        self.record = record
        self._files = files
        self._warn = warn
        self._saved = ""
        self._warned = False

    def event(self, kind: str, **facts: Any) -> None:
        """Append one line; see `append_event`."""
        try:
            append_event(self._files, kind, **facts)
        except OSError as error:
            self._complain(error)

    def end(self, state: RunState, exit_code: int, failure: FailureRecord | None) -> None:
        """Note the end of the run, which is now; `save` writes it."""
        record = self.record
        record.state = state
        record.exit_code = exit_code
        record.failure = failure
        record.ended = now_text()
        record.stalled = None
        self.event("ended", state=state, exit_code=exit_code)

    def save(self) -> None:
        """Write run.json, if it would change."""
        if (text := repr(self.record)) == self._saved:
            return
        try:
            write = self._files.write_last_words if self.record.ended else write_record
            write(self._files.run, self.record)
            self._saved = text
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"cannot write to {self._files.directory}: {error.strerror}; the run continues without its "
                "journal"
            )
