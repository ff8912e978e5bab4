"""How a task ends when it does not end well: its exit code, what it prints, and the record it leaves.

No decorator is needed in the program: every way out of it passes through here. An error is the user's own
object: its text, its notes and its causes may raise, never end, or be no UTF-8. Nothing of that may take the
place of the error itself.
"""

from dtrain.runs.failure.codes import exit_code
from dtrain.runs.failure.record import describe, record, show

__all__ = ["describe", "exit_code", "record", "show"]
