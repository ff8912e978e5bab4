"""The `dtrain` command: its groups, and the one gate through which every error leaves."""

import contextlib
import errno
import gc
import os
import signal
import sys
from typing import NoReturn

for number in (signal.SIGTERM, signal.SIGHUP):  # before what takes long to import: what was started is ended
    if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
        signal.signal(number, lambda number, frame: sys.exit(128 + number))

try:
    from dtrain_cli.targets import cold_start

    cold_start.start_early(sys.argv[1:])

    import click

    from dtrain.errors import DtrainError, SpecError
    from dtrain_cli.commands import (
        chaos,
        checks,
        command_line,
        compare,
        data,
        environment,
        first_run,
        launch,
        models,
        queue,
        report,
        roles,
        runs,
        security,
        tune,
    )
    from dtrain_cli.console import streams
except KeyboardInterrupt:  # these take a while on a busy machine
    sys.exit(130)

_OF_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
"""Errors without a file's name that writing to stdout has."""
EPILOG = """\b
Examples:
  dtrain launch examples/digits.py
  dtrain launch --workers 4 cluster_specs/laptop_sync.yaml examples/digits.py --steps 500
  dtrain launch -- python train_with_tensorflow.py
  dtrain status --watch
"""


class _Group(click.Group):
    """A group whose help lists the commands by purpose."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{each.name:12}", each.get_short_help_str()) for each in commands])


@click.group(cls=_Group, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dtrain", message="dtrain %(version)s")
def cli() -> None:
    """Turn one training program into a cluster: processes on a laptop, or one task on each real machine."""


@click.command(
    "help",
    short_help="Show this list, or the help of a command or a name.",
    epilog="\b\nExamples:\n  dtrain help launch\n  dtrain help LSTM\n  dtrain help dt.layers\n",
)
@click.argument("name", metavar="[COMMAND|NAME]", required=False)
@click.pass_context
def show_help(context: click.Context, name: str | None) -> None:
    """Show the list of commands, the help of COMMAND, or that of a public NAME, such as dt.layers.LSTM.

    A module lists its names. A command comes before a name: `data` is a command, `dt.data` the module.
    """
    above = context.parent
    assert above is not None
    found = cli.get_command(above, name) if name else cli
    if found is None:  # the names and their docstrings are the runtime's
        command = ["-P", "-m", "dtrain.task.help_command", str(name), *cli.commands]
        os.execv(sys.executable, [sys.executable, *command])
    click.echo(found.get_help(above if found is cli else click.Context(found, info_name=name, parent=above)))


SECTIONS = {
    "Begin": first_run.COMMANDS,
    "Start and check": (*launch.COMMANDS, compare.compare, *tune.COMMANDS, *checks.COMMANDS, *roles.COMMANDS),
    "Look at runs and act on them": (
        *runs.COMMANDS,
        report.report,
        *queue.COMMANDS,
        *chaos.COMMANDS,
        runs.rm,
    ),
    "Use a trained model, look at data": (*models.COMMANDS, *data.COMMANDS),
    "Set up": (*security.COMMANDS, *environment.COMMANDS, show_help),
}
for command in (each for commands in SECTIONS.values() for each in commands):
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line and exit with its code; a user's mistake is a message, never a traceback."""
    streams.make_plain()
    stdout = sys.stdout
    try:
        command_line.install_completion()
        code = cli.main(prog_name="dtrain", standalone_mode=False) or 0
    except BrokenPipeError:
        code = 0
    except SystemExit as error:
        # It is click's own: a completion has been answered, or (stdout wrapped) its reader is gone.
        code = error.code if sys.stdout is stdout else 0
    except DtrainError as error:
        # What is wrong in a spec begins with its place, as editors expect it.
        _print(str(error) if isinstance(error, SpecError) else f"dtrain: {error}")
        code = error.exit_code
    except click.ClickException as error:
        _show(error)
        code = error.exit_code
    except UnicodeEncodeError as error:  # of a name of a file: runs are recorded as JSON
        _print(f"dtrain: {error.object!r:.300}: expected a name in UTF-8; rename it, or choose another")
        code = 2
    except OSError as error:
        unnamed = "the output cannot be written" if error.errno in _OF_OUTPUT else "the system"
        _print(f"dtrain: {error.filename or unnamed}: {error.strerror or error}")
        code = 1
    except (click.Abort, KeyboardInterrupt):
        code = 130
    cold_start.end_early()
    _drop_unread_output()
    gc.freeze()  # everything ends here: Python need not look through it for garbage first
    sys.exit(code)


def _show(error: click.ClickException) -> None:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    path = "dtrain" if context is None else context.command_path  # click's parser of options knows no context
    message = error.format_message()
    end = "" if message.endswith((".", "?", "?)")) else "."
    _print(f"{path}: {message}{end} See `{path} --help`.")


def _print(message: str) -> None:
    from dtrain.formats.remote_files import masked  # not above: the room is large
    from dtrain.process.plain_text import plain

    with contextlib.suppress(BrokenPipeError):
        click.echo(plain(masked(message)), err=True)


def _drop_unread_output() -> None:
    """Drop output whose reader has gone (`dtrain status | head`): Python would complain about it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
