"""The end of a task that fails: its exit code, its last output, and the record that it leaves.

No decorator is needed in the program: every way out of it passes through here. An error is the user's own
object: its text, its notes and its causes may raise, never end, or be no UTF-8. None of that may hide the
error itself.
"""

from dtrain.runs.failure.codes import exit_code
from dtrain.runs.failure.record import describe, record, show

__all__ = ["describe", "exit_code", "record", "show"]
