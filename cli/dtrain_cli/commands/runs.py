"""`dtrain status`, `logs`, `stop`, `runs` and `rm`: look at runs from any terminal, end them, remove them."""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dtrain.cluster import TaskId
from dtrain.errors import DtrainError, RunError, RunInUseError, SpecError
from dtrain.runs.states import LIVE_RUN_STATES, RunState
from dtrain_cli.commands.command_line import (
    Count,
    Seconds,
    complete_run,
    complete_run_or_task,
    json_option,
    json_option_of,
    runs_dir_option,
)
from dtrain_cli.console.streams import print_json

if TYPE_CHECKING:
    from dtrain_cli.console.streams import PlainBytes
    from dtrain_cli.launch.on_hosts import DetachedRun
    from dtrain_cli.launch.run_elsewhere import RunElsewhere
    from dtrain_cli.runs.index import KnownRun
    from dtrain_cli.runs.logs import TaskOutput

WATCH_EVERY_S = 1.0
FOLLOW_EVERY_S = 0.2
STACKS_S = 20.0
"""The longest time that py-spy may take for one process."""


def find(reference: str | None, runs_dir: Path | None) -> "KnownRun":
    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.runs.index import find_run

    return find_run(reference, runs_dir or default_runs_dir())


def runs_text(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


@click.command(
    short_help="Show every task of a run.",
    epilog=(
        "\b\nExamples:\n  dtrain status\n  dtrain status digits --watch\n  dtrain status --json | jq "
        ".global_step\n"
    ),
)
@click.argument("run", required=False, shell_complete=complete_run)
@click.option("--watch", is_flag=True, help="Show it again every second until the run ends.")
@json_option
@runs_dir_option
def status(run: str | None, watch: bool, as_json: bool, runs_dir: Path | None) -> int:
    """Show every task of RUN (default: the newest).

    RUN is an id, a unique prefix of one, a name or a path. Exit code: 0 pending to succeeded, 1 failed or
    stale, 3 no such run, 4 stopped.
    """
    from dtrain_cli.runs.report import EXIT_CODES

    found = find(run, runs_dir)
    state = RunState.PENDING
    damaged: list[str] = []
    reports = _reports(found, watch)
    if watch and not as_json and sys.stdout.isatty():
        from dtrain_cli.console.watching import watch as watch_screen

        reports = iter([watch_screen(_reports(found, watch, every_s=0.0), found.files)])
    for report in reports:
        state = report["state"]
        if report["damaged"] != damaged:
            damaged = report["damaged"]
            click.echo("\n".join(f"dtrain: {line}" for line in damaged), err=True)
        if as_json:
            print_json(report)
        else:
            _show(report)
    return EXIT_CODES.get(state, 0)


def _reports(run: "KnownRun", watch: bool, every_s: float = WATCH_EVERY_S) -> Iterator[dict[str, Any]]:
    from dtrain_cli.runs.report import ProcessMeter, read_report

    meter = ProcessMeter()
    there = _elsewhere(run)
    while True:
        report = there.report(meter) if there else read_report(run.files.directory, meter)
        yield report
        if not watch or report["state"] not in LIVE_RUN_STATES:
            return
        sys.stdout.flush()
        time.sleep(every_s)


def _show(report: dict[str, Any]) -> None:
    from dtrain_cli.console.run_table import status_table, stdout_console

    console = stdout_console()
    console.print(status_table(report, console.width))


@click.command(
    short_help="Show what tasks have printed.",
    epilog=(
        "\b\nExamples:\n  dtrain logs\n  dtrain logs worker:0 -n 20\n  dtrain logs digits chief:0 ps:1 -f\n"
        "  dtrain logs digits worker:1 --stacks\n"
    ),
)
@click.argument("run_and_tasks", nargs=-1, metavar="[RUN] [TASK]...", shell_complete=complete_run_or_task)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed, until the run ends.")
@click.option("-n", "last", type=Count(0), metavar="N", help="Begin with the last N lines of each task.")
@click.option("--stacks", is_flag=True, help="Show where each Python process of the tasks is now (py-spy).")
@json_option_of("Print one JSON object a line.")
@runs_dir_option
def logs(
    run_and_tasks: tuple[str, ...],
    follow: bool,
    last: int | None,
    stacks: bool,
    as_json: bool,
    runs_dir: Path | None,
) -> None:
    """Show what tasks of RUN have printed, in all attempts; default: every task of the newest run.

    With --stacks, show instead what the threads of their processes do, also of a command that hangs.
    """
    from dtrain_cli.console.streams import PlainBytes
    from dtrain_cli.runs.logs import TaskOutput

    words = list(run_and_tasks)
    run = find(words.pop(0) if words and not _is_task(words[0]) else None, runs_dir)
    _end_there(
        run, {"-f": follow, "--stacks": stacks, "--json": as_json, f"-n{last}": last is not None}, words
    )
    tasks, there = _chosen(run, words), _elsewhere(run)
    if stacks:
        return _show_stacks(run, tasks, as_json)
    if there is not None and there.show_logs(tasks, last, follow, as_json):
        return None
    outputs = [TaskOutput(run.files, task) for task in tasks]
    width = max(len(str(task)) for task in tasks) if len(outputs) > 1 else 0
    shown = [PlainBytes() if sys.stdout.isatty() else None for _ in tasks]
    if all(output.is_empty for output in outputs):
        where = "" if run.record.keeps_logs else "; a task without a launcher prints on its own terminal"
        names = ", ".join(map(str, tasks))
        click.echo(f"{names} of run {run.record.run}: nothing printed so far{where}", err=True)
    for output in outputs:
        if last is not None:
            output.skip_to_last(last)
    while True:
        # Whether more can come is asked before reading: what a task prints as the run ends must not be
        # missed.
        ended = not (follow and _state(run, there) in LIVE_RUN_STATES)
        for output, plain in zip(outputs, shown, strict=True):
            if as_json:
                _print_objects(output, ended)
            else:
                _print_output(output, plain, width, ended)
        sys.stdout.flush()
        if ended:
            return None
        time.sleep(FOLLOW_EVERY_S)


def _show_stacks(run: "KnownRun", tasks: list[TaskId], as_json: bool) -> None:
    for task, text in _stacks(run, tasks):
        for line in text.splitlines():
            print_json({"task": task, "line": line}) if as_json else click.echo(f"{task} | {line}")


def _stacks(run: "KnownRun", tasks: list[TaskId]) -> Iterator[tuple[str, str]]:
    """Yield the name of a task and what py-spy says of one of its processes, or why it says nothing."""
    import psutil

    from dtrain.runs.states import LIVE_TASK_STATES
    from dtrain_cli.runs.report import read_report

    tool = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if tool is None:
        raise DtrainError("--stacks needs py-spy: `pip install py-spy`")
    report = read_report(run.files.directory, goodput=False)
    lives = report["state"] in LIVE_RUN_STATES
    for task in (each for each in report["tasks"] if TaskId.parse(each["task"]) in tasks):
        if not lives or task["pid"] is None or task["state"] not in LIVE_TASK_STATES:
            yield task["task"], "has no process"
            continue
        if task["host"] not in (None, socket.gethostname()):
            yield task["task"], f"its process {task['pid']} is on {task['host']}: ask py-spy there"
            continue
        try:
            process = psutil.Process(task["pid"])
            members = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            members = []
        for member in members:
            said = subprocess.run(
                [tool, "dump", "--pid", str(member.pid)], capture_output=True, text=True, timeout=STACKS_S
            )
            why = said.stderr.strip().partition("\n")[0].removeprefix("Error: ")
            yield task["task"], said.stdout or f"process {member.pid}: py-spy cannot read it: {why}"


def _is_detached(run: "KnownRun") -> bool:
    from dtrain_cli.runs.index import where_of

    return where_of(run.files).launcher is not None


def _end_there(run: "KnownRun", flags: dict[str, bool], words: list[str]) -> None:
    """Have the launcher's host of a detached run show its logs, and end as that does."""
    if _is_detached(run):
        from dtrain_cli.launch.on_hosts import end_as

        end_as(run, ["logs", *(flag for flag, wanted in flags.items() if wanted)], words)


def _chosen(run: "KnownRun", words: list[str]) -> list[TaskId]:
    from dtrain_cli.runs.report import with_joined

    known = [TaskId.parse(task.task) for task in with_joined(run.files, run.record.tasks)]
    tasks = [TaskId.parse(word) for word in words] or known
    for task in tasks:
        if task not in known:
            raise SpecError(
                f"run {run.record.run} has no {task}; it has {', '.join(map(str, known)) or 'no tasks'}"
            )
    return tasks


def _is_task(word: str) -> bool:
    try:
        TaskId.parse(word)
    except SpecError:
        return False
    return True


def _elsewhere(run: "KnownRun") -> "RunElsewhere | DetachedRun | None":
    """Return a run as its engine, or its launcher's host, sees it; None for the others, without imports."""
    from dtrain_cli.runs.index import where_of

    where = where_of(run.files)
    if where.launcher is not None:
        from dtrain_cli.launch.on_hosts import DetachedRun

        return DetachedRun(run)
    if where.job is None:
        return None
    from dtrain_cli.launch.run_elsewhere import run_elsewhere

    return run_elsewhere(run)


def _state(run: "KnownRun", there: "RunElsewhere | DetachedRun | None") -> str:
    from dtrain_cli.runs.report import read_report

    report = there.report() if there else read_report(run.files.directory, goodput=False)
    return str(report["state"])


def _print_objects(output: "TaskOutput", ended: bool) -> None:
    for line in output.lines(ended):
        print_json({"task": str(output.task), "line": line.decode(errors="replace").rstrip("\n")})


def _print_output(output: "TaskOutput", shown: "PlainBytes | None", width: int, ended: bool) -> None:
    """Print what is new of a task: plainly on a terminal, whose state no task may change, else as it is.

    Lines stand behind the task's name in `width` characters, unless that is 0.
    """
    if width == 0:
        for block in output.blocks():
            sys.stdout.buffer.write(shown.text(block) if shown else block)
        return
    label = f"{output.task!s:{width}} | ".encode()
    for line in output.lines(ended):
        sys.stdout.buffer.write(label + (shown.text(line) if shown else line))


@click.command(
    short_help="Stop a run in order.", epilog="\b\nExamples:\n  dtrain stop\n  dtrain stop digits\n"
)
@click.argument("run", required=False, shell_complete=complete_run)
@click.option(
    "--wait", type=Seconds(0), default=60.0, show_default=True, metavar="S", help="How long to wait."
)
@json_option
@runs_dir_option
def stop(run: str | None, wait: float, as_json: bool, runs_dir: Path | None) -> None:
    """Stop RUN (default: the newest) in order: workers, evaluator, chief after a last checkpoint, servers."""
    found = find(run, runs_dir)
    name, there = found.record.run, _elsewhere(found)
    state = _state(found, there)
    if state not in LIVE_RUN_STATES:
        why = "its launcher has died, and its tasks with it" if state == RunState.STALE else f"it has {state}"
        click.echo(f"run {name} is not running: {why}", err=True)
    else:
        from dtrain_cli.runs.ending import stop_launcher

        click.echo(f"stopping run {name}", err=True)
        if not (there.stop(wait) if there else stop_launcher(found, wait)):
            raise RunError(
                f"run {name} is still stopping after {wait:g} s; look at it with `dtrain status {name}`"
            )
        state = _state(found, there)
        click.echo(f"run {name} has {state}{there.what_stays if there else ''}", err=True)
    if as_json:
        print_json({"run": name, "state": state, "run_dir": str(found.files.directory)})


@click.command(short_help="List the runs, newest first.", epilog="\b\nExample:\n  dtrain runs\n")
@json_option_of("Print a JSON array.")
@runs_dir_option
def runs(as_json: bool, runs_dir: Path | None) -> None:
    """List the runs that this machine knows, the newest first."""
    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.runs.ending import bytes_of
    from dtrain_cli.runs.index import no_run_below, survey, where_of, where_text
    from dtrain_cli.runs.report import read_report

    fields = ("run", "name", "state", "started", "ended", "exit_code", "global_step", "run_dir")
    directory = runs_dir or default_runs_dir()
    found = survey(directory)
    known = []
    listed = []
    for run in found.runs:
        try:
            report = read_report(run.files.directory, goodput=False)
        except (RunError, OSError) as error:  # it has become damaged, or has gone, since it was found
            found.unread.append(str(error))
            continue
        known.append(run)
        where = where_text(where_of(run.files))
        if _is_detached(run):
            report["state"] = run.record.state  # as it was known last
        listed.append({**{name: report[name] for name in fields}, "where": where})
        found.unread.extend(report["damaged"])
    for line in found.unread if listed or as_json else ():
        click.echo(f"dtrain: {line}", err=True)
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo(no_run_below(directory, found.unread), err=True)
    else:
        from dtrain.process.plain_text import bytes_text
        from dtrain_cli.console.run_table import runs_table, stdout_console

        stdout_console().print(runs_table(listed))
        used = bytes_text(sum(bytes_of(run, directory) for run in known))
        click.echo(
            f"{runs_text(len(known))} in {used} below {directory}; "
            "`dtrain rm --older-than 7d` removes old ones",
            err=True,
        )


@click.command(
    "join-line",
    short_help="Print what to type on another machine to join a run.",
    epilog="\b\nExample:\n  dtrain join-line digits\n",
)
@click.argument("run", required=False, shell_complete=complete_run)
@runs_dir_option
def join_line(run: str | None, runs_dir: Path | None) -> None:
    """Print the lines that start one more worker of RUN (default: the newest) on another machine.

    It needs the program, by the same path, and the same version of dtrain. The first line has the run's
    secret: whoever reads it can join, read and stop the run.
    """
    from dtrain_cli.launch.join import join_line as line_of

    found = find(run, runs_dir)
    if _is_detached(found):
        from dtrain_cli.launch.on_hosts import end_as

        end_as(found, ["join-line"], [])
    click.echo(line_of(found))
    click.echo("type this where the worker is to run; it holds the secret of the run", err=True)


COMMANDS = (status, logs, stop, runs, join_line)


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Age(click.ParamType[timedelta]):
    """A time such as ``7d``."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        match = re.fullmatch(r"(\d{1,6})([smhdw])", str(value))
        if match is None:
            self.fail(f"{value!r} is not an age such as 90m, 12h, 7d or 4w.", param, ctx)
        return timedelta(**{_UNITS[match[2]]: int(match[1])})


@click.command(
    "rm",
    short_help="Remove runs that have ended.",
    epilog=(
        "\b\nExamples:\n  dtrain rm 20261121-094500-digits-ab12\n  dtrain rm --older-than 7d\n  dtrain "
        "rm --keep 20 --dry-run\n"
    ),
)
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option(
    "--older-than", type=Age(), metavar="AGE", help="Only runs that ended longer ago, e.g. 12h, 7d, 4w."
)
@click.option("--keep", type=Count(0), metavar="N", help="Spare the newest N.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
@runs_dir_option
def rm(
    names: tuple[str, ...],
    older_than: timedelta | None,
    keep: int | None,
    dry_run: bool,
    as_json: bool,
    runs_dir: Path | None,
) -> None:
    """Remove the files of each RUN (an id, a unique prefix of one, a name, which is its newest run, or a
    path).

    With --older-than or --keep and no RUN: of all runs that this machine knows. A run that lives is never
    removed. What a run has left on the hosts where its tasks ran goes too, with the code that was sent; and
    so do its objects in a cluster, but for its disk. A host or a cluster that cannot be reached is named, and
    the exit code is 1.
    """
    if not names and older_than is None and keep is None:
        raise SpecError(
            "expected the runs to remove, or --older-than AGE, or --keep N; `dtrain runs` lists them"
        )

    from dtrain.process.plain_text import bytes_text
    from dtrain.runs.files import default_runs_dir
    from dtrain_cli.console.streams import say
    from dtrain_cli.launch.on_hosts import clean_hosts
    from dtrain_cli.runs.ending import alive_text, bytes_of, old_runs, remove_run
    from dtrain_cli.runs.index import known_runs
    from dtrain_cli.runs.report import is_alive

    directory = runs_dir or default_runs_dir()
    named = {run.files.directory: run for run in (find(name, runs_dir) for name in names)}
    chosen = old_runs(list(named.values()) or known_runs(directory), older_than, keep or 0, datetime.now(UTC))
    elsewhere = {run.files: there for run in chosen if (there := _elsewhere(run)) is not None}
    lives = [
        run for run in chosen if is_alive(run.files, run.record) or _lives(run, elsewhere.get(run.files))
    ]
    if lives and named:
        raise RunInUseError(alive_text(lives[0]))
    freed: dict[str, int] = {}
    verb, would = ("would remove", "would be ") if dry_run else ("removing", "")
    gone = [run for run in chosen if run not in lives]
    left = [] if dry_run else clean_hosts(gone)
    for there in [elsewhere[run.files] for run in gone if run.files in elsewhere and not dry_run]:
        left += _removed(there)
    for run in gone:
        freed[str(run.files.directory)] = used = bytes_of(run, directory)
        if not as_json:
            click.echo(f"{verb} {run.files.directory}  {bytes_text(used)}")
        if not dry_run:
            remove_run(run, directory)
    spared = f"; {runs_text(len(lives))} still running, not removed" if lives else ""
    total = bytes_text(sum(freed.values()))
    click.echo(f"{runs_text(len(gone))} {would}removed, {total}{spared}", err=True)
    if as_json:
        removed = [{"run_dir": path, "bytes": used} for path, used in freed.items()]
        print_json({"removed": removed, "dry_run": dry_run, "running": len(lives), "left": left})
    for sentence in left:
        say(sentence)
    if left:
        click.get_current_context().exit(1)


def _lives(run: "KnownRun", there: "RunElsewhere | DetachedRun | None") -> bool:
    if there is None or run.record.state not in LIVE_RUN_STATES:
        return False
    return there.report()["state"] in LIVE_RUN_STATES


def _removed(there: "RunElsewhere | DetachedRun") -> list[str]:
    """Remove what the engine has of a run; return in a sentence what may still be there."""
    try:
        if sentence := there.remove():
            click.echo(f"dtrain: {sentence}", err=True)
    except RunError as error:
        return [f"{there.name}: its engine may still have something of it: {error}"]
    return []
