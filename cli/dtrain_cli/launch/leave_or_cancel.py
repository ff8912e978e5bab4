"""The question on Ctrl-C where an engine owns the tasks: leave what was started, or cancel it."""

import os
import select
import sys
from collections.abc import Callable

from dtrain_cli.targets.signal_inbox import STOP_SIGNALS, SignalInbox

_TURN_S = 0.1


def asked_to_cancel(
    what: str, signals: SignalInbox, say: Callable[[str], None], pump: Callable[[], None]
) -> bool:
    """Return whether the user cancels; without a terminal, on another signal and on any other answer not.

    Args:
        what: goes on if it is not cancelled, in words.
        signals: to this process.
        say: prints a line.
        pump: called again and again while the user thinks.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(f"{what} goes on without this command: leave it there, or cancel it? [leave/cancel]")
    say("type c to cancel; Enter, or Ctrl-C again, to leave it")
    while True:
        pump()
        ready, _, _ = select.select([sys.stdin, signals], [], [], _TURN_S)
        if signals in ready and set(signals.read()) & set(STOP_SIGNALS):
            return False
        if sys.stdin in ready:
            return os.read(sys.stdin.fileno(), 1024).strip().lower().startswith(b"c")
