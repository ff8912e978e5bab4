"""`dtrain fork-server`: a process that saves each launch its imports."""

import os
import sys
from pathlib import Path

import click


@click.command(
    "fork-server",
    short_help="Serve many launches with one warm process.",
    epilog="\b\nExample:\n  dtrain fork-server warm.socket &\n"
    "  DTRAIN_FORK_SERVER=$PWD/warm.socket dtrain launch examples/digits.py\n",
)
@click.argument("socket", type=click.Path(path_type=Path), metavar="SOCKET")
def fork_server(socket: Path) -> None:
    """Import everything once, listen at SOCKET, and fork the tasks of every launch that has
    DTRAIN_FORK_SERVER=SOCKET in its environment. Ends at Ctrl-C; launches that run then go on.
    """
    os.execv(sys.executable, [sys.executable, "-P", "-m", "dtrain.task", "--warm-server", str(socket)])


COMMANDS = (fork_server,)
