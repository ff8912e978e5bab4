"""`dtrain launch` and `dtrain plan`."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dtrain.errors import DtrainError, SpecError
from dtrain_cli.commands.command_line import (
    DIRECTORY,
    GIVEN,
    Count,
    ProgramCommand,
    ProgramWords,
    Seconds,
    all_of,
    json_option,
    json_option_of,
    runs_dir_option,
    spec_options,
)
from dtrain_cli.commands.queue import Memory
from dtrain_cli.console.streams import print_json
from dtrain_cli.targets import cold_start

if TYPE_CHECKING:
    from dtrain_cli.launch.options import LaunchOptions
    from dtrain_cli.plan.run_plan import RunPlan

LAUNCH_EPILOG = """\b
Examples:
  dtrain launch examples/digits.py
  dtrain launch --set simulate.slow.worker:2=5 cluster_specs/laptop_sync_backup.yaml examples/digits.py
  dtrain launch --workers 2 --ps 1 -- python train_with_tensorflow.py
"""
PLAN_EPILOG = """\b
Example:
  dtrain plan --workers 3 examples/digits.py
"""
SECONDS = Seconds(0)
LAST_BYTES = 1000
"""The number of last bytes of the output of a failed program that are shown."""
_directory_options = all_of(
    runs_dir_option,
    click.option(
        "--run-dir", type=DIRECTORY, metavar="DIR", help="The run's own directory, instead of a new one."
    ),
)


@click.command(
    cls=ProgramCommand,
    optional_values=["--resume"],
    short_help="Start the whole cluster here, watch it, stop it.",
    epilog=LAUNCH_EPILOG,
)
@spec_options
@_directory_options
@click.option(
    "--resume", metavar="[RUN]", help="Go on from the last checkpoint of a run (default: the newest)."
)
@click.option(
    "--from-scratch",
    is_flag=True,
    help="With --resume: begin at step 0 if the checkpoints are not there.",
)
@click.option("--timeout", type=SECONDS, metavar="S", help="Stop the run after S seconds (exit code 124).")
@click.option(
    "--stall-timeout",
    type=SECONDS,
    default=300.0,
    show_default=True,
    metavar="S",
    help="Without a step for so long, tasks log their stacks; a replica that holds up the others is killed.",
)
@click.option("--queue", is_flag=True, help="Wait in line until the cores and the memory are free.")
@click.option("--cores", type=Count(1), metavar="N", help="With --queue: claim N (default: one a task).")
@click.option("--memory", type=Memory(), metavar="SIZE", help="With --queue: claim e.g. 2GB (default: none).")
@click.option("--detach", is_flag=True, help="Start it elsewhere, and do not follow it.")
@click.option(
    "--prometheus",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write goodput, steps and more to FILE every 5 s, for Prometheus (node_exporter's textfiles).",
)
@json_option_of("Print the final status as the last line of stdout.")
def launch(words: ProgramWords, sets: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Start the whole cluster on this machine, watch it, stop it.

    SPEC describes the cluster; without one: a chief, 2 workers, 2 parameter servers and an evaluator.
    PROGRAM.py and its arguments run in every task but the parameter servers. After -- any executable runs in
    every task, with its TF_CONFIG.
    """
    words = _checked(words)

    from dtrain.config.choices import On
    from dtrain_cli.launch.engines import command_of, engine_of
    from dtrain_cli.launch.engines import launch as launch_here

    wanted = _options(words, sets, {"json": as_json, **options})
    if wanted.from_scratch and wanted.resume is None:
        raise click.UsageError("--from-scratch belongs to --resume; a run without it begins at step 0")
    if not wanted.queue and (wanted.cores or wanted.memory):
        raise click.UsageError("--cores and --memory belong to --queue; nothing is claimed without it")
    if wanted.resume is not None and wanted.spec is None:
        from dtrain_cli.launch.request import with_settings_of_run

        wanted = with_settings_of_run(wanted)
    engine = engine_of(wanted)
    file = wanted.prometheus
    if file is not None and engine is On.KUBERNETES:
        raise SpecError("--prometheus: on kubernetes nothing is known of the tasks' time; leave it away")
    if file is not None and not os.access(file.absolute().parent, os.W_OK | os.X_OK):
        raise SpecError(f"--prometheus: {file.parent} is no folder that you may write to; name a file in one")
    if engine is not On.LOCAL:
        if wanted.queue:
            raise SpecError(
                f"--queue: is for tasks of this machine, and `on: {engine}` places them elsewhere"
            )
        cold_start.end_early()
        return int(command_of(engine, "launch")(wanted))
    if sys.platform != "linux":
        raise DtrainError("launch needs Linux; `python PROGRAM.py` trains here in one process")
    return launch_here(wanted)


def _options(words: ProgramWords, sets: tuple[str, ...], options: dict[str, Any]) -> "LaunchOptions":
    from dtrain_cli.launch.options import LaunchOptions
    from dtrain_cli.spec import SHORTCUTS

    shortcuts = {name: options.pop(name) for name in SHORTCUTS}
    given, behind = click.get_current_context().meta[GIVEN]
    return LaunchOptions(
        spec=words.spec,
        sets=sets,
        shortcuts=shortcuts,
        program=words.program,
        arguments=words.arguments,
        given=given,
        behind=behind,
        **options,
    )


@click.command(cls=ProgramCommand, short_help="Show what launch would do.", epilog=PLAN_EPILOG)
@spec_options
@_directory_options
@json_option
def plan(
    words: ProgramWords,
    sets: tuple[str, ...],
    as_json: bool,
    runs_dir: Path | None,
    run_dir: Path | None,
    **shortcuts: Any,
) -> int:
    """Show each task's address (an example: not held), TF_CONFIG, command line, environment and log.

    With --strategy pipeline also the stages: the program runs here up to its first fit, and trains nothing.

    For another engine (--on): what would be sent there, on stdout, and what it means, on stderr.
    """
    words = _checked(words)

    from dtrain.config.choices import On
    from dtrain_cli.launch.engines import command_of, engine_of

    wanted = _options(words, sets, {"json": as_json, "runs_dir": runs_dir, "run_dir": run_dir, **shortcuts})
    engine = engine_of(wanted)
    if engine is not On.LOCAL:
        return int(command_of(engine, "plan")(wanted))
    from dtrain_cli.plan.standalone_start import is_by_hand

    run_plan = _example_plan(wanted)
    pipeline = _stages(run_plan)
    if as_json:
        print_json({"addresses": "example", **run_plan.to_dict(), **pipeline}, indent=2)
    elif words.spec is not None and is_by_hand(run_plan.cluster):
        _show_by_hand(run_plan, words, sets, shortcuts)
    else:
        _show_plan(run_plan)
    if pipeline and not as_json:
        click.echo("\npipeline: the program has run here up to its first fit, and trained nothing")
        click.echo("\n".join(pipeline["pipeline"]["lines"]))
    return 0


def _stages(run_plan: "RunPlan") -> dict[str, Any]:
    """Return the stages of a pipeline; else nothing, nor where the program does not come to its first `fit`.

    Only the program knows its model: a process runs it here, as the leader, up to its first `fit`, and
    measures its layers there (`dtrain.strategies.pipeline.planning`).
    """
    from dtrain.config import PipelineSection

    leader = next(each for each in run_plan.tasks if each.task == run_plan.leader)
    if leader.program is None or not isinstance(run_plan.spec.training, PipelineSection):
        return {}
    import json
    import subprocess

    from dtrain.process.assignment import PLANNED, RUN_DIR, RUN_ID

    click.echo(f"dtrain: runs {leader.program} up to its first fit, to measure its layers", err=True)
    variables = {**os.environ, **leader.environment, PLANNED: "1"}
    own = {name: value for name, value in variables.items() if name not in (RUN_ID, RUN_DIR)}
    within_s, nothing = run_plan.spec.wait.start_s, subprocess.DEVNULL
    given: Any = {"cwd": leader.cwd, "env": own, "stdin": nothing, "capture_output": True}
    try:
        ended = subprocess.run(leader.command, timeout=within_s, **given)
        why, out, err = f"has ended with exit code {ended.returncode} before a", ended.stdout, ended.stderr
    except subprocess.TimeoutExpired:
        why, out, err = f"in {within_s:g} s (wait.start_s) has not come to a", b"", b""
    _, found, last = out.rpartition(f"\n{PLANNED} ".encode())
    if not found:
        click.echo(f"dtrain: {leader.program} {why} call of fit, so its stages are not known", err=True)
        click.echo(err[-LAST_BYTES:], err=True, nl=False)
        return {}
    answer = json.loads(last)
    if "error" in answer:
        raise SpecError(answer["error"])
    return {"pipeline": answer}


def _checked(words: ProgramWords) -> ProgramWords:
    words.check_program()
    assert isinstance(launch, ProgramCommand)
    return launch.check_arguments(words)


def _example_plan(options: "LaunchOptions") -> "RunPlan":
    from datetime import datetime

    from dtrain.cluster.hosts import LOOPBACK
    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.launch.request import read_named
    from dtrain_cli.plan.ports import example_addresses, pick_master_port
    from dtrain_cli.plan.run_plan import Machine, RunIdentity, build_plan
    from dtrain_cli.runs.index import new_run_id

    workload, spec = read_named(options, starts=False)
    run_id = new_run_id(spec.name, datetime.now())
    directory = options.run_dir or (options.runs_dir or default_runs_dir()) / run_id
    machine = Machine(
        sys.executable,
        len(os.sched_getaffinity(0)),
        os.environ,
        (LOOPBACK, pick_master_port()) if options.foreign else None,
    )
    return build_plan(
        spec,
        example_addresses(spec.cluster),
        RunIdentity(run_id, directory.absolute()),
        workload,
        machine,
    )


def _show_by_hand(
    run_plan: "RunPlan", words: ProgramWords, sets: tuple[str, ...], shortcuts: dict[str, Any]
) -> None:
    from dtrain_cli.plan.standalone_start import lines_by_hand
    from dtrain_cli.spec import SHORTCUTS

    options = {".".join(SHORTCUTS[name]): value for name, value in shortcuts.items() if value is not None}
    options |= {key: value for key, _, value in (text.partition("=") for text in sets)}
    command = (str(words.program), *words.arguments) if words.program else words.arguments
    tasks = [launch.task for launch in run_plan.tasks]
    click.echo("the spec writes addresses: start each task on its host, in any order")
    shown = None
    lines = lines_by_hand(tasks, run_plan.cluster, str(words.spec), options, command, words.foreign)
    for host, line in lines:
        if host != shown:
            click.echo(f"\n{host}")
        shown = host
        click.echo(f"  {line}")
    if not words.foreign and not run_plan.spec.security.insecure:
        click.echo("\neach needs the same --secret-file FILE, which `dtrain secret FILE` makes")


def _show_plan(run_plan: "RunPlan") -> None:
    from dtrain.config import local_steps_of
    from dtrain.config.choices import NumberFormat

    shared = dict(set.intersection(*(set(launch.environment.items()) for launch in run_plan.tasks)))
    click.echo(f"run {run_plan.run.run_id} in {run_plan.run.run_dir}")
    click.echo("addresses are examples: picked now, not held")
    if steps := local_steps_of(run_plan.spec.training):
        size = 5.0 if run_plan.spec.on_servers.compression != NumberFormat.NONE else 10.0
        click.echo(
            f"local steps: a replica sends its variables, and reads them, once in {steps} of its steps: "
            f"1/{steps} of the bytes of a push for every step\n"
            f"  of a model of 10 MB, at 10 steps a second, {size * 10 / steps:.3g} MB/s each way instead of "
            f"{size * 10:g}"
        )
    for launch in run_plan.tasks:
        click.echo(f"\n{launch.task}  {launch.address or '(no address)'}")
        click.echo(f"  command  {shlex.join(launch.command)}")
        click.echo(f"  log      {launch.log}")
        for name, value in launch.environment.items():
            if name not in shared:
                click.echo(f"  {name}={shlex.quote(value)}")
    click.echo("\nevery task")
    for name in sorted(shared):
        click.echo(f"  {name}={shlex.quote(shared[name])}")


COMMANDS = (launch, plan)
