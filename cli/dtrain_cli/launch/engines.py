"""The engines of a launch: this machine, and each other by its word in `on`; the one list of them.

On this machine the fork server starts first, so that it imports while `launcher` does. Where an engine
owns the tasks, Ctrl-C asks whether to leave what was started, or to cancel it.
"""

import os
import re
import select
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from dtrain.config.choices import On
from dtrain.errors import SpecError
from dtrain.formats.bounded_reading import read_regular
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.targets import cold_start
from dtrain_cli.targets.fork_server import ForkServer
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox

COMMANDS: Mapping[On, Mapping[str, str]] = {
    On.SSH: {"launch": "on_hosts:launch_by_ssh", "plan": "on_hosts:plan"},
    On.KUBERNETES: {"launch": "kubernetes.launching:launch", "plan": "kubernetes.planning:plan"},
    On.SLURM: {"launch": "slurm:launch", "plan": "slurm:plan"},
    On.TRAINER: {"plan": "kubernetes.planning:plan_runtime"},
    On.SKYPILOT: {"plan": "elsewhere:plan_skypilot"},
    On.RAY: {"plan": "elsewhere:plan_ray"},
}
"""`module:function` that carries out a command on an engine, (`LaunchOptions`) -> exit code."""
_SAYS_ON = re.compile(rb"""(?:^|[\s{,])["']?on["']?\s*[:=]""")


def engine_of(options: LaunchOptions) -> On:
    """Return the engine that the options or the spec name, without reading a spec that names none.

    With a mistake it is this machine: the launch there reads the whole spec, and reports the mistake.
    """
    engine = options.shortcuts.get("on")
    if engine is None and options.earlier is not None:
        engine = options.earlier.data.get("on")
    elif engine is None and options.spec is not None and _may_say_on(options.spec):
        from dtrain_cli.spec import read_tree

        engine = read_tree(options.spec).data.get("on")
    for text in options.sets:
        engine = text.removeprefix("on=") if text.startswith("on=") else engine
    return On(engine) if isinstance(engine, str) and engine in set(On) else On.LOCAL


def _may_say_on(spec: Path) -> bool:
    try:
        return _SAYS_ON.search(read_regular(spec, 1 << 20)) is not None  # what is larger is no spec
    except OSError:
        return False


def command_of(engine: On, command: str) -> Callable[[LaunchOptions], int]:
    """Return what carries out `launch` or `plan` on an engine; raise a `SpecError` if that cannot."""
    known = COMMANDS.get(engine, {})
    if command not in known:
        others = ", ".join((On.LOCAL, *(other for other, has in COMMANDS.items() if command in has)))
        instead = f"; `dtrain plan --on {engine}` prints what to submit there" if "plan" in known else ""
        raise SpecError(f"on: {command} knows no {engine}; expected one of {others}{instead}")
    module, _, name = known[command].partition(":")
    function: Callable[[LaunchOptions], int] = getattr(import_module(f"dtrain_cli.launch.{module}"), name)
    return function


def launch(options: LaunchOptions) -> int:
    """Start the whole cluster here, watch it, stop it; return the exit code.

    The calling process must have no other children.

    Raises:
        SpecError: the spec, the program or the command is wrong; nothing has been started or left behind.
        RunError: the run directory cannot be used, or another launch uses it.
    """
    cold_start.prepare()
    line, early = cold_start.take_early()
    servers = [] if options.queue else [ForkServer(line, early, bare=options.foreign)]
    try:
        from dtrain_cli.launch import launcher  # not above: what these import would delay the fork server
        from dtrain_cli.targets.local import LocalTarget

        def target(_scene: launcher.Scene) -> LocalTarget:
            if options.queue:  # while it waited, the memory was others'
                servers.append(ForkServer(line, early, bare=options.foreign))
            return LocalTarget(servers[0])

        return launcher.run(options, target)
    finally:
        for server in servers:
            server.kill()


class RunElsewhere(ABC):
    """A run that its engine owns, as a command sees it that follows the run.

    Attributes:
        name: what Ctrl-C asks about, such as ``job 17``.
        say: prints a line.
    """

    name: str
    say: Callable[[str], None]

    @abstractmethod
    def look(self) -> int | None:
        """Ask the engine, and say what is news; return the run's exit code once it is over.

        What the engine shows last is copied then. An engine that does not answer is asked again.
        """

    @abstractmethod
    def show(self) -> bool:
        """Copy what tasks have printed; return whether there was something."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop the run in order; a command that follows it sees its end."""

    @abstractmethod
    def leave(self) -> None:
        """Say how to look at a run that is followed no longer, and how to end it."""


_TURN_S = 0.1
_LOOK_EVERY_S = (1.0, 5.0)
"""Between two questions to an engine: in the first minute, and later."""
_SOON_S = 60.0


def follow(run: RunElsewhere, signals: SignalInbox) -> int:
    """Wait for the end of a run; return its exit code, or that of the signal which has ended the wait.

    Ctrl-C asks, and gives 130 whether it leaves or cancels the run, unless the run has succeeded before.
    """
    cancelled = False
    begun_s = look_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        if now_s >= look_s:
            look_s = now_s + _LOOK_EVERY_S[now_s - begun_s > _SOON_S]
            if (code := run.look()) is not None:
                return 128 + signal.SIGINT if cancelled and code else code
        select.select([signals], [], [], 0 if run.show() else _TURN_S)
        for number in signals.read():
            if number == signal.SIGINT and asked_to_cancel(run.name, signals, run.say, run.show):
                run.cancel()
                cancelled = True
            elif number in STOP_SIGNALS:
                run.leave()
                return 128 + number


def asked_to_cancel(
    what: str, signals: SignalInbox, say: Callable[[str], None], pump: Callable[[], object]
) -> bool:
    """Return whether the user cancels `what`; without a terminal, and by any other answer, it goes on.

    `pump` is called again and again while the user thinks.
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
