"""`dtrain env`, `completion` and `fork-server`: about this machine and this shell."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from dtrain_cli.commands.command_line import VARIABLE, json_option
from dtrain_cli.console.streams import print_json


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


PACKAGES = (
    "click",
    "grpcio",
    "msgspec",
    "numpy",
    "portpicker",
    "psutil",
    "rich",
    "ruamel.yaml",
    "threadpoolctl",
)
SHELLS = ("bash", "zsh", "fish")


@click.command(
    short_help="Show what this machine offers.", epilog="\b\nExamples:\n  dtrain env\n  dtrain env --json\n"
)
@json_option
def env(as_json: bool) -> None:
    """Show versions, cores, memory and limits, and what a launch would choose here."""
    facts = _facts()
    if as_json:
        print_json(facts)
        return
    for section, values in facts.items():
        click.echo(section.replace("_", " "))
        width = max(map(len, values), default=0)
        for name, value in values.items():
            click.echo(f"  {name:{width}}  {'none' if value is None else value}")


def _facts() -> dict[str, dict[str, Any]]:
    import platform
    import resource
    from importlib.metadata import PackageNotFoundError, version

    import psutil

    from dtrain.config import EMBEDDED_DEFAULT
    from dtrain.formats.remote_files import MASKED, masked
    from dtrain.process.plain_text import bytes_text
    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.plan.run_plan import threads_per_task

    def version_of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    cores = len(os.sched_getaffinity(0))
    shared = psutil.disk_usage("/dev/shm")
    return {
        "versions": {
            "dtrain": version_of("dtrain"),
            "python": platform.python_version(),
            **{p: version_of(p) for p in PACKAGES},
        },
        "machine": {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cores": cores,
            "memory": bytes_text(psutil.virtual_memory().total),
            "memory_available": bytes_text(psutil.virtual_memory().available),
            "shared_memory_free": bytes_text(shared.free),
        },
        "limits": {
            "open_files": _limit(resource.getrlimit(resource.RLIMIT_NOFILE)),
            "processes": _limit(resource.getrlimit(resource.RLIMIT_NPROC)),
        },
        "a_launch_would_choose": {
            "cluster": str(EMBEDDED_DEFAULT.cluster),
            "threads_per_task": threads_per_task(EMBEDDED_DEFAULT, cores),
            "runs_dir": str(default_runs_dir()),
        },
        "environment": {
            name: MASKED if name == "DTRAIN_SECRET" else masked(value)
            for name, value in sorted(os.environ.items())
            if name == "TF_CONFIG" or name.startswith("DTRAIN_") or name.endswith("_NUM_THREADS")
        },
    }


def _limit(limits: tuple[int, int]) -> str:
    import resource

    soft, hard = ("unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in limits)
    return soft if soft == hard else f"{soft} (up to {hard})"


@click.command(
    short_help="Print the completion script of a shell.",
    epilog='\b\nExample:\n  eval "$(dtrain completion bash)"\n',
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete dtrain's commands and options."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None, shell
    click.echo(complete(context.find_root().command, {}, "dtrain", VARIABLE).source())


COMMANDS = (env, completion, fork_server)
