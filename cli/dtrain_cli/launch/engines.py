"""The engines of a launch: this machine, and each other by its word in `on`; the one list of them.

On this machine the fork server starts first, so that it imports while `launcher` does.
"""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from dtrain.config.choices import On
from dtrain.errors import SpecError
from dtrain.formats.bounded_reading import read_regular
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.targets import cold_start
from dtrain_cli.targets.fork_server import ForkServer

COMMANDS: Mapping[On, Mapping[str, str]] = {
    On.SSH: {"launch": "on_hosts:launch_by_ssh", "plan": "on_hosts:plan"},
    On.KUBERNETES: {
        "launch": "kubernetes:launch",
        "plan": "kubernetes:plan",
        "run": "kubernetes:PodsOfRun",
    },
    On.SLURM: {"launch": "slurm:launch", "plan": "slurm:plan", "run": "slurm:JobOfRun"},
    On.TRAINER: {"plan": "kubernetes:plan_runtime"},
    On.SKYPILOT: {"plan": "elsewhere:plan_skypilot"},
    On.RAY: {"plan": "elsewhere:plan_ray"},
}
"""`module:function` that carries out `launch` or `plan` on an engine, (`LaunchOptions`) -> exit code; or the
class of a `run` that lives there, for all commands that look at it (`run_elsewhere`)."""
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


def command_of(engine: On, command: str) -> Callable[..., Any]:
    """Return what carries out a command on an engine; raise a `SpecError` if that cannot."""
    known = COMMANDS.get(engine, {})
    if command not in known:
        others = ", ".join((On.LOCAL, *(other for other, has in COMMANDS.items() if command in has)))
        instead = f"; `dtrain plan --on {engine}` prints what to submit there" if "plan" in known else ""
        raise SpecError(f"on: {command} knows no {engine}; expected one of {others}{instead}")
    module, _, name = known[command].partition(":")
    function: Callable[..., Any] = getattr(import_module(f"dtrain_cli.launch.{module}"), name)
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
