"""`dtrain queue`: the line of launches that wait for this machine, and the changes that a user may make."""

import contextlib
import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dtrain.errors import SpecError
from dtrain_cli.commands.command_line import json_option
from dtrain_cli.console.streams import print_json

if TYPE_CHECKING:
    from dtrain_cli.queue.rules import Capacity
    from dtrain_cli.queue.tickets import TicketFolder


class Memory(click.ParamType[int]):
    """An amount of memory such as ``2GB``, in bytes."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from dtrain.studies.study_spec import memory_bytes

        if (found := memory_bytes(value)) is None:
            self.fail(f"{value!r} is not an amount of memory such as 800MB or 2GB.", param, ctx)
        return found


@click.group(
    invoke_without_command=True,
    short_help="Show who waits for this machine, and why.",
    epilog="\b\nExamples:\n  dtrain queue\n  dtrain queue move digits first\n  dtrain queue drain\n",
)
@json_option
@click.pass_context
def queue(context: click.Context, as_json: bool) -> None:
    """List the launches with --queue: what each has claimed, and why and until about when it waits.

    Each user has a queue of their own. DTRAIN_QUEUE_DIR names a folder in which several users share one.
    """
    if context.invoked_subcommand is not None:
        return
    from dtrain.process.plain_text import bytes_text
    from dtrain_cli.console.live_table import fitted_table
    from dtrain_cli.console.run_table import stdout_console
    from dtrain_cli.queue.tickets import TicketFolder, capacity_of_machine

    with contextlib.closing(TicketFolder()) as folder, folder.locked():
        rows, drained = _rows(folder, capacity := capacity_of_machine()), folder.drained
    free = capacity.cores - sum(row["cores"] for row in rows if row["position"] is None)
    if as_json:
        machine = {"folder": str(folder.path), "cores": capacity.cores, "memory_bytes": capacity.memory}
        print_json({**machine, "free_cores": free, "drained": drained, "launches": rows})
        return
    names = ("position", "run", "user", "cores", "memory", "state", "why")
    for row in rows:
        row["memory"] = bytes_text(row["memory_bytes"]) if row["memory_bytes"] else ""
    cells = [{name: str(row[name] or "") for name in names} for row in rows]
    if cells:
        headings, width = dict(zip(names, names, strict=True)), stdout_console().width
        stdout_console().print(fitted_table(cells, headings, names[:4:3], ("memory", "user"), "why", width))
    note = "; it is drained: no launch starts" if drained else ""
    click.echo(f"{free} of {capacity.cores} cores are free in the queue {folder.path}{note}", err=True)


def _rows(folder: "TicketFolder", capacity: "Capacity") -> list[dict[str, Any]]:
    """Return a row for each launch, those that run first; `position` counts those that wait."""
    from dtrain_cli.queue import line, rules, tickets

    now_s, found = time.monotonic(), folder.tickets()
    running = [(0, rules.Turn(each, True, until_s=each.end_s(now_s))) for each in found if each.started_s]
    rows = []
    for position, turn in [*running, *enumerate(rules.turns(found, capacity, now_s, folder.drained), 1)]:
        ticket = turn.ticket
        until = line.wall_clock(turn.until_s) if turn.until_s < math.inf else None
        row: dict[str, Any] = {"position": position or None, "state": "waiting" if position else "running"}
        row |= {"run": ticket.run, "name": ticket.name, "user": tickets.user_name(ticket.uid)}
        row |= {"pid": ticket.pid, "cores": ticket.cores, "memory_bytes": ticket.memory}
        row |= {"why": line.reason(turn) if position else f"runs{f' until {until:%H:%M}' if until else ''}"}
        rows.append(row | {"until": until and until.isoformat(timespec="seconds")})
    return rows


@queue.command(short_help="Give a launch of yours another place in line.")
@click.argument("launch", metavar="ID")
@click.argument("where", type=click.Choice(["first", "last", "before"]))
@click.argument("other", metavar="[ID]", required=False)
def move(launch: str, where: str, other: str | None) -> None:
    """Move a launch that waits to the first or last place of your own, or before another one of yours.

    Nobody else waits longer for it: your launches exchange the places that they have. Root moves all.
    """
    from dtrain_cli.queue import rules, tickets

    if (where == "before") != (other is not None):
        raise SpecError("expected `first`, `last`, or `before ID`")
    with contextlib.closing(tickets.TicketFolder()) as folder, folder.locked() as found:
        beside = rules.named(found, other) if other else None
        for each in rules.moved(found, rules.named(found, launch), where, beside, os.geteuid()):
            folder.write(each)


@queue.command(short_help="Take a launch that waits out of the line.")
@click.argument("launch", metavar="ID")
def cancel(launch: str) -> None:
    """End a launch that waits, with exit code 143. One that runs is ended by `dtrain stop`."""
    from dtrain_cli.queue import rules, tickets

    with contextlib.closing(tickets.TicketFolder()) as folder, folder.locked() as found:
        ticket = rules.named(found, launch)  # it cannot start before the lock is released
        try:
            if Path(f"/proc/{ticket.pid}").stat().st_uid != ticket.uid:  # anything may stand in a ticket
                raise PermissionError
            os.kill(ticket.pid, signal.SIGTERM)
        except OSError:
            raise SpecError(f"{ticket.run} is a launch of another user or container") from None


@queue.command(short_help="Let no launch start from now on.")
@click.option("--off", is_flag=True, help="Let launches start again.")
def drain(off: bool) -> None:
    """Let those that run end, and all others wait, for example before the machine is shut down.

    In a shared folder its owner and root may do that.
    """
    from dtrain_cli.queue.tickets import TicketFolder

    with contextlib.closing(TicketFolder()) as folder:
        folder.drain(not off)


COMMANDS = (queue,)
