"""The grammar that click does not know: where options end, those of a spec, and a shell's completions.

    dtrain COMMAND [OPTIONS] [SPEC] [OPTIONS] PROGRAM.py [ARGS...]
    dtrain COMMAND [OPTIONS] [SPEC] [OPTIONS] -- EXECUTABLE [ARGS...]

Everything after PROGRAM or ``--`` belongs to the program. SPEC is the argument that ends in .yaml, .yml,
.json or .toml. What stands behind PROGRAM and can only be a slip (an option of the command that the program
does not know, a cluster spec) is refused; ``PROGRAM.py -- ARGS`` gives the program whatever follows.

bash cuts words at colons (COMP_WORDBREAKS), so that click's own script never sees `worker:0` as one word.
The script here hands over the line up to the cursor, and removes from each answer its part before the last
colon, which is there.
"""

import ast
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile
from math import isnan
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from dtrain.errors import SpecError

GIVEN = "dtrain_cli.given"
"""The name by which a click context holds the options of a `ProgramCommand`, and what is behind them."""
SPEC_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_PLACED_SUFFIXES = (".py", *SPEC_SUFFIXES)
Decorator = Callable[[Any], Any]


@dataclass(frozen=True)
class ProgramWords:
    """The arguments of a command that takes a program; with `foreign`, ``--`` and a whole command."""

    spec: Path | None = None
    program: Path | None = None
    arguments: tuple[str, ...] = ()
    foreign: bool = False

    @property
    def written(self) -> tuple[str, ...]:
        named = (str(path) for path in (self.spec, self.program) if path is not None)
        return (*named, *(["--"] if self.foreign else []), *self.arguments)

    def check_program(self) -> None:
        try:
            for text in (str(Path.cwd()), str(self.program), *self.arguments):
                text.encode()  # else an UnicodeEncodeError, before anything is made
        except FileNotFoundError:
            raise SpecError("the working directory does not exist any more; go to one that does") from None
        if self.foreign:
            if not self.arguments:
                raise SpecError("expected a command after --, such as `dtrain launch -- python program.py`")
            _check_executable(self.arguments[0])
        elif self.program is None:
            raise SpecError(
                "expected a program, such as `dtrain launch PROGRAM.py`, or `-- COMMAND` for any executable"
            )
        else:
            check_program_file(self.program)


def check_program_file(program: Path) -> None:
    """Raise a `SpecError` unless a program is a ``.py`` file that can be read and compiles."""
    if program.suffix in SPEC_SUFFIXES:
        raise SpecError(f"{program}: expected a Python program PROGRAM.py, found a second spec")
    if program.suffix != ".py":
        raise SpecError(f"{program}: expected a Python program PROGRAM.py{_instead(program)}")
    try:
        source = program.read_bytes()
    except OSError as error:
        raise SpecError(f"{program}: cannot read the program: {error.strerror}") from None
    _check_that_it_compiles(program, source)


def _instead(path: Path) -> str:
    if path.is_dir():
        return ", found a directory"
    if path.exists() and not os.access(path, os.X_OK):
        return ", found another file, which is not executable either"
    return f"; write `-- {path}` for any other executable"


def _check_executable(name: str) -> None:
    if shutil.which(name) is not None:
        return
    if "/" in name and Path(name).is_file():
        raise SpecError(
            f"{name}: is not executable; run `chmod +x {name}`, or name its interpreter: `-- sh {name}`"
        )
    raise SpecError(f"{name}: no such executable; check the name after -- and PATH")


def _check_that_it_compiles(program: Path, source: bytes) -> None:
    try:
        with _no_warnings():
            compile(source, program, "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"{program}:{error.lineno}:{error.offset}" if error.lineno else str(program)
        raise SpecError(
            f"{place}: the program does not compile: {type(error).__name__}: {error.msg}"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte; nested too deeply
        raise SpecError(f"{program}: the program does not compile: {error or type(error).__name__}") from None


@contextmanager
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


OPTION_GROUPS = {
    "The cluster": "--spec --index --join --set --workers --ps --evaluator",
    "How it trains": "--strategy --updates --backup-workers --local-steps --stages --staleness-bound "
    "--steps --top --modes",
    "Where it runs": "--on --hosts --bind --work --code --detach",
    "Its place in line": "--queue --cores --memory",
    "Who may take part": "--secret-file --tls-ca --tls-cert --tls-key --insecure",
    "Its files": "--name --out --runs-dir --run-dir --resume --from-scratch --prometheus",
    "How long to wait": "--start-timeout --grace --timeout --stall-timeout",
    "Others": "--ps-hosts --worker-hosts --job-name --task-index --json -h",
}
"""The options by what they are for, as the help of a command lists them."""


class ProgramCommand(click.Command):
    """A command whose last arguments are a program's. Its callback gets them as `words`.

    Args:
        takes_spec: whether a spec may stand before the program.
        optional_values: the options whose value may be left out; it is "" then.
        shared: the options that may stand among the program's arguments as well.
    """

    def __init__(
        self,
        *args: Any,
        takes_spec: bool = True,
        optional_values: Sequence[str] = (),
        shared: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._takes_spec = takes_spec
        self._shared = frozenset(shared)
        self._optional = frozenset(optional_values)
        with_value = (param for param in self.params if isinstance(param, click.Option) and not param.is_flag)
        self._required = frozenset(name for option in with_value for name in option.opts) - self._optional
        self._names = frozenset(
            name for param in self.params for name in (*param.opts, *param.secondary_opts)
        )
        self.params.append(click.Argument(["words"], nargs=-1, type=click.Path()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options, words = self._split(args)
        ctx.meta[GIVEN] = tuple(options), words.written
        super().parse_args(ctx, options)
        ctx.params["words"] = words
        return []

    def check_arguments(self, words: ProgramWords) -> ProgramWords:
        """Raise a `SpecError` if an option of this command or a spec stands among the program's arguments.

        A ``--`` directly behind the program says that all that follows is the program's; it is left out.
        """
        if words.program is None or not words.arguments:
            return words
        if words.arguments[0] == "--":
            return replace(words, arguments=words.arguments[1:])
        for word in takewhile(lambda word: word != "--", words.arguments):
            name = word.partition("=")[0]
            if (
                name.startswith("--")
                and name in self._names - self._shared
                and not _knows(words.program, name)
            ):
                raise SpecError(self._misplaced(f"{name} is an option of dtrain", name, words.program))
            if self._takes_spec and _is_spec(word):
                raise SpecError(self._misplaced(f"{word} is a cluster spec", word, words.program))
        return words

    def _misplaced(self, what: str, word: str, program: Path) -> str:
        before = f"dtrain {self.name} {word} ... {program}"
        behind = f"{program} -- {word} ..."
        return (
            f"{what}, which stands before the program: `{before}`; if it is the program's own, write "
            f"`{behind}`"
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = {each.opts[0]: each for each in self.get_params(ctx)}
        for title, names in OPTION_GROUPS.items():
            if rows := [options[name].get_help_record(ctx) for name in names.split() if name in options]:
                with formatter.section(title):
                    formatter.write_dl([row for row in rows if row])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete dtrain's options before the program; those behind it are not known."""
        words = ctx.params.get("words") or ProgramWords()
        return [] if words.program or words.foreign else super().shell_complete(ctx, incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return (
            ["[OPTIONS]", "[SPEC]", "PROGRAM.py|--", "..."]
            if self._takes_spec
            else ["[OPTIONS]", "PROGRAM.py", "[ARGS]..."]
        )

    def _split(self, args: Sequence[str]) -> tuple[list[str], ProgramWords]:
        options: list[str] = []
        spec: Path | None = None
        rest = list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                return options, ProgramWords(spec, None, tuple(rest), foreign=True)
            if word in self._required:
                options += [word, *rest[:1]]
                del rest[:1]
            elif word in self._optional:
                # The next word is the value of an option such as `--resume` unless it has its own place.
                has_value = rest and not rest[0].startswith("-") and not rest[0].endswith(_PLACED_SUFFIXES)
                options.append(f"{word}={rest.pop(0) if has_value else ''}")
            elif word.startswith("-") and word != "-":
                options.append(word)
            elif self._takes_spec and spec is None and word.endswith(SPEC_SUFFIXES):
                spec = Path(word)
            else:
                return options, ProgramWords(spec, Path(word), tuple(rest))
        return options, ProgramWords(spec)


def _knows(program: Path, option: str) -> bool:
    """Return whether a program writes an option's name as argparse and click want it (``--x/--no-x``)."""
    with _no_warnings():
        tree = ast.parse(program.read_bytes())
    texts = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return any(text.startswith("-") and option in text.split("/") for text in texts)


def _is_spec(word: str) -> bool:
    """Return whether a word names a file with a `cluster` section; other files are the program's own."""
    if not word.endswith(SPEC_SUFFIXES) or not Path(word).is_file():
        return False

    from dtrain.config import ROLES
    from dtrain_cli.spec import read_tree

    try:
        cluster = read_tree(Path(word)).data.get("cluster")
    except SpecError:
        return False
    return isinstance(cluster, dict) and bool(cluster) and cluster.keys() <= set(ROLES)


RUNS_DIR_HELP = "Where runs are kept (default: DTRAIN_RUNS_DIR, else ~/.local/state/dtrain/runs)."
ENGINES = ("local", "ssh", "slurm", "kubernetes", "trainer", "skypilot", "ray")
"""The words of `dtrain.config.choices.On`, whose room this one does not import for every command."""
DIRECTORY = click.Path(path_type=Path, file_okay=False)


class Count(click.IntRange):
    """click calls it an `integer range` when it refuses something."""

    name = "whole number"


class Seconds(click.FloatRange):
    """Likewise; click takes `nan` for a number in any range."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a valid {self.name}.", param, ctx) if isnan(seconds) else seconds


class LocalSteps(Count):
    """A number of steps, or one on the mean of all replicas."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        word, colon, steps = str(value).partition(":")
        by_speed = colon and word == "by_speed"
        number: Any = steps if by_speed else value
        count = super().convert(number, param, ctx)
        return {word: count} if by_speed else count


_FILE: dict[str, Any] = {"metavar": "FILE"}
SECURITY_OPTIONS: dict[str, dict[str, Any]] = {
    "--secret-file": _FILE | {"help": "The secret that all tasks of the run share."},
    "--tls-ca": _FILE | {"help": "The certificates from which every task's must descend."},
    "--tls-cert": _FILE | {"help": "A task's certificate; {role} and {index} are filled in."},
    "--tls-key": _FILE | {"help": "The key of that certificate; likewise."},
    "--insecure": {"is_flag": True, "default": None, "help": "On a network, do without a secret."},
}
"""The options of `security`, for every command that connects."""
_OPTIONS = (
    click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set any field, e.g. cluster.worker=8."
    ),
    click.option("--workers", type=Count(0), metavar="N", help="Number of workers."),
    click.option("--ps", type=Count(0), metavar="N", help="Number of parameter servers."),
    click.option("--evaluator/--no-evaluator", default=None, help="Whether to evaluate beside the training."),
    click.option("--strategy", metavar="NAME", help="How to distribute, e.g. parameter_server."),
    click.option("--updates", type=click.Choice(["sync", "async"]), help="When gradients are applied."),
    click.option("--backup-workers", type=Count(0), metavar="N", help="sync: do not wait for the N slowest."),
    click.option(
        "--local-steps",
        type=LocalSteps(1),
        metavar="H",
        help="ps: push once for H steps of a replica; by_speed:H: more of a fast one, fewer of a slow one.",
    ),
    click.option("--stages", type=Count(1), metavar="N", help="pipeline: cut the model into N stages."),
    click.option("--staleness-bound", type=Count(0), metavar="N", help="async: at most N steps ahead."),
    click.option(
        "--start-timeout", type=Seconds(0), metavar="S", help="All tasks must be up by then (default: 60)."
    ),
    click.option(
        "--grace", type=Seconds(0), metavar="S", help="From the order to stop to SIGKILL (default: 10)."
    ),
    click.option("--name", metavar="NAME", help="The run's name."),
    click.option("--hosts", metavar="H1,H2:4", help="The hosts of the tasks, with slots (--on ssh|slurm)."),
    click.option("--on", type=click.Choice(ENGINES), help="Who starts the tasks (default: local)."),
)


def all_of(*options: Decorator) -> Decorator:
    """Return a decorator that adds options and arguments to a command, in the order of its help."""
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


spec_options = all_of(
    *_OPTIONS, *(click.option(name, **settings) for name, settings in SECURITY_OPTIONS.items())
)
"""`--set` and the shortcuts; the callback gets `sets` and the names of `spec.SHORTCUTS`."""
runs_dir_option = click.option("--runs-dir", type=DIRECTORY, metavar="DIR", help=RUNS_DIR_HELP)
"""The callback gets `runs_dir`, a Path or None."""


def json_option_of(what: str) -> Decorator:
    """Return `--json`, of which the callback gets `as_json`. docs/reference/schemas/ says what it prints."""
    return click.option("--json", "as_json", is_flag=True, help=what)


json_option = json_option_of("Print one JSON object.")


VARIABLE = "_DTRAIN_COMPLETE"

_BASH = r"""
%(complete_func)s() {
    local IFS=$'\n'
    local line="${COMP_LINE:0:COMP_POINT}" completion type value typed=""
    local word="${line##*[[:space:]]}"
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        typed="${word%%:*}:"
    fi
    COMPREPLY=()
    for completion in $(env COMP_WORDS="$line" %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == 'dir' ]]; then
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("${value#"$typed"}")
        fi
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class BashWithColons(BashComplete):
    """Completion in bash from the line itself instead of bash's words."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        begun = words.pop() if line and not line[-1].isspace() else ""
        return words[1:], begun


def install_completion() -> None:
    add_completion_class(BashWithColons)


def complete_run(context: click.Context, _parameter: click.Parameter, begin: str) -> list[str]:
    from dtrain_cli.runs.index import known_runs

    words = {word for run in known_runs(_runs_dir(context)) for word in (run.record.run, run.record.name)}
    return sorted(word for word in words if word.startswith(begin))


def complete_task(context: click.Context, _parameter: click.Parameter, begin: str) -> list[str]:
    return _tasks(context, context.params.get("run"), begin)


def complete_run_or_task(context: click.Context, parameter: click.Parameter, begin: str) -> list[str]:
    """Return runs for the first word, and tasks of the run that it names, else of the newest one."""
    words = context.params.get("run_and_tasks") or ()
    runs = complete_run(context, parameter, begin) if not words else []
    return runs + _tasks(context, words[0] if words and ":" not in words[0] else None, begin)


def _tasks(context: click.Context, run: str | None, begin: str) -> list[str]:
    from dtrain.errors import RunError
    from dtrain_cli.runs.index import find_run
    from dtrain_cli.runs.report import with_joined

    try:
        found = find_run(run, _runs_dir(context))
        tasks = [task.task for task in with_joined(found.files, found.record.tasks)]
    except RunError:
        return []
    return sorted(task for task in tasks if task.startswith(begin))


def _runs_dir(context: click.Context) -> Path:
    from dtrain.runs.files import default_runs_dir

    return context.params.get("runs_dir") or default_runs_dir()
