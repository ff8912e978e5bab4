"""The engines that start tasks beyond this machine, each by its word in `on`: the one list of them."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from dtrain.config.choices import On
from dtrain.errors import SpecError
from dtrain.formats.regular_file import read_regular
from dtrain_cli.launch.options import LaunchOptions

LAUNCHERS: Mapping[On, str] = {
    On.SSH: "dtrain_cli.launch.on_hosts:launch_by_ssh",
    On.KUBERNETES: "dtrain_cli.launch.kubernetes.launching:launch",
    On.SLURM: "dtrain_cli.launch.slurm.entry:launch",
}
"""`module:function` that carries out `dtrain launch` on an engine, (`LaunchOptions`) -> exit code."""
PLANNERS: Mapping[On, str] = {
    On.KUBERNETES: "dtrain_cli.launch.kubernetes.planning:plan",
    On.SLURM: "dtrain_cli.launch.slurm.entry:plan",
    On.SSH: "dtrain_cli.launch.plan_on_hosts:plan",
    On.VERTEX: "dtrain_cli.launch.vertex:plan",
}
"""`module:function` that prints what a launch would give an engine, likewise."""
_SAYS_ON = re.compile(rb"""(?:^|[\s{,])["']?on["']?\s*[:=]""")


def engine_of(options: LaunchOptions) -> On:
    """Return the engine that the options or the spec name, without reading a spec that names none.

    With a mistake it is this machine: the launch there reads the whole spec, and reports the mistake.
    """
    said = options.shortcuts.get("on")
    if said is None and options.earlier is not None:
        said = options.earlier.data.get("on")
    elif said is None and options.spec is not None and _may_say_on(options.spec):
        from dtrain_cli.spec.tree import read_tree

        said = read_tree(options.spec).data.get("on")
    for text in options.sets:
        said = text.removeprefix("on=") if text.startswith("on=") else said
    return On(said) if isinstance(said, str) and said in set(On) else On.LOCAL


def _may_say_on(spec: Path) -> bool:
    try:
        return _SAYS_ON.search(read_regular(spec, 1 << 20)) is not None  # what is larger is no spec
    except OSError:
        return False


def launcher_of(engine: On) -> Callable[[LaunchOptions], int]:
    """Return what launches on an engine.

    Raises:
        SpecError: nothing does.
    """
    return _named(engine, LAUNCHERS, "launch")


def planner_of(engine: On) -> Callable[[LaunchOptions], int]:
    """Return what prints the plan of an engine.

    Raises:
        SpecError: nothing does.
    """
    return _named(engine, PLANNERS, "plan")


def _named(engine: On, places: Mapping[On, str], command: str) -> Callable[[LaunchOptions], int]:
    place = places.get(engine)
    if place is None:
        known = ", ".join((On.LOCAL, *places))
        instead = f"; `dtrain plan --on {engine}` prints what to submit there" if engine in PLANNERS else ""
        raise SpecError(f"on: {command} knows no {engine}; expected one of {known}{instead}")
    module, _, name = place.partition(":")
    function: Callable[[LaunchOptions], int] = getattr(import_module(module), name)
    return function
