"""Standing in line: a launch enters, waits for its turn, and claims all that it needs at once."""

import os
import select
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec.structs import replace

from dtrain.errors import RunError
from dtrain_cli.queue.rules import Capacity, Ticket, Turn, turns
from dtrain_cli.queue.tickets import TicketFolder, user_name
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox

POLL_S = 0.2
LOOK_EVERY_S = 5.0
"""Without a sign of a change everything is looked at so often all the same."""


def enter_and_wait(
    folder: TicketFolder, ticket: Ticket, capacity: Capacity, signals: SignalInbox, say: Callable[[str], None]
) -> int | None:
    """Stand in line until the ticket has its claim; return the signal that ended the wait before, if one did.

    Raises a `RunError` if the folder's lock cannot be had.
    """
    with folder.locked() as tickets:
        folder.enter(ticket, tickets)
    said = None
    while True:
        seen_ns = folder.time_of_change()
        with folder.locked() as tickets:
            if stops := [number for number in signals.read() if number in STOP_SIGNALS]:
                return stops[0]
            line = turns(tickets, capacity, time.monotonic(), folder.drained)
            mine = [each for each in enumerate(line, 1) if each[1].ticket.file == folder.own]
            if not mine:
                raise RunError(f"{folder.path / folder.own} has been removed; launch again")
            place, turn = mine[0]
            if turn.starts:
                folder.write(replace(turn.ticket, started_s=time.monotonic()))
                return None
        if said != (place, turn.awaited and turn.awaited.run):
            said = (place, turn.awaited and turn.awaited.run)
            say(f"place {place} of {len(line)} in the queue: {reason(turn)}; `dtrain queue` shows it")
        # A launch that is killed writes nothing, so the locks of what runs and of the head are watched.
        running = (each.file for each in tickets if each.started_s is not None)
        watched = [*running, line[0].ticket.file]
        until_s = time.monotonic() + LOOK_EVERY_S
        while time.monotonic() < until_s and not select.select([signals], [], [], POLL_S)[0]:
            if seen_ns is None or folder.time_of_change() != seen_ns or not all(map(folder.read, watched)):
                break


def reason(turn: Turn) -> str:
    """Return in words why a ticket waits; runs of other users are named with these."""
    return turn.why(
        lambda each: each.run + (f" of {user_name(each.uid)}" if each.uid != os.geteuid() else ""),
        lambda at_s: f"{wall_clock(at_s):%H:%M}",
    )


def wall_clock(at_s: float) -> datetime:
    """Return a moment of the monotonic clock as a local time."""
    return datetime.now().astimezone() + timedelta(seconds=at_s - time.monotonic())
