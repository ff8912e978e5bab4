"""The grammar that click does not know: where dtrain's options end and the program's begin.

    dtrain COMMAND [OPTIONS] [SPEC] [OPTIONS] PROGRAM.py [ARGS...]
    dtrain COMMAND [OPTIONS] [SPEC] [OPTIONS] -- EXECUTABLE [ARGS...]

Everything after PROGRAM or ``--`` belongs to the program. SPEC is the argument that ends in .yaml, .yml,
.json or .toml. What stands behind PROGRAM and can only be a slip (an option of the command that the program
does not know, a cluster spec) is refused; ``PROGRAM.py -- ARGS`` gives the program whatever follows.
"""

import ast
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from dtrain.errors import SpecError

GIVEN = "dtrain_cli.given"
"""Under which name a click context holds what was written behind the name of a `ProgramCommand`."""
SPEC_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True)
class Words:
    """The arguments of a command that takes a program.

    Attributes:
        spec: the spec file, if one was named.
        program: the Python program; None for a foreign command, or where none was named.
        arguments: what follows the program, or the whole foreign command.
        foreign: whether ``--`` was written.
    """

    spec: Path | None = None
    program: Path | None = None
    arguments: tuple[str, ...] = ()
    foreign: bool = False

    def check_program(self) -> None:
        """Raise a `SpecError` unless there is something to run, and somewhere to run it."""
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
    """Return the words to write where something else than a Python program is named."""
    if path.is_dir():
        return ", found a directory"
    if path.exists() and not os.access(path, os.X_OK):
        return ", found another file, which is not executable either"
    return f"; write `-- {path}` for any other executable"


def _check_executable(name: str) -> None:
    """Raise a `SpecError` unless the shell would find a command."""
    if shutil.which(name) is not None:
        return
    if "/" in name and Path(name).is_file():
        raise SpecError(
            f"{name}: is not executable; run `chmod +x {name}`, or name its interpreter: `-- sh {name}`"
        )
    raise SpecError(f"{name}: no such executable; check the name after -- and PATH")


def _check_that_it_compiles(program: Path, source: bytes) -> None:
    """Compile a program as its tasks would; raise a `SpecError` if that fails."""
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
    """Leave the compiler's warnings to the tasks, which compile the program as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


OPTION_GROUPS = {
    "The cluster": "--spec --index --join --set --workers --ps --evaluator",
    "How it trains": "--strategy --updates --backup-workers --staleness-bound",
    "Where it runs": "--on --hosts --bind --work --code --detach",
    "Who may take part": "--secret-file --tls-ca --tls-cert --tls-key --insecure",
    "Its files": "--name --runs-dir --run-dir --resume --from-scratch",
    "How long to wait": "--start-timeout --grace --timeout --stall-timeout",
    "Others": "--ps-hosts --worker-hosts --job-name --task-index --json -h",
}
"""The options by what they are for, as the help of a command lists them."""


class ProgramCommand(click.Command):
    """A command whose last arguments are a program's. Its callback gets them as `words`.

    Args:
        takes_spec: whether a spec may stand before the program.
        optional_values: the options whose value may be left out; they get "" then.
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
        """Give click the options alone."""
        options, words = self._split(args)
        named = [str(path) for path in (words.spec, words.program) if path is not None]
        ctx.meta[GIVEN] = (*options, *named, *(["--"] if words.foreign else []), *words.arguments)
        super().parse_args(ctx, options)
        ctx.params["words"] = words
        return []

    def check_arguments(self, words: Words) -> Words:
        """Check what stands behind a program that has been checked.

        Returns:
            The words without a ``--`` directly behind the program, which says that all that follows is the
            program's.

        Raises:
            SpecError: without it, an option of this command or a spec stands among the program's arguments.
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
        """List the options by what they are for."""
        options = {each.opts[0]: each for each in self.get_params(ctx)}
        for title, names in OPTION_GROUPS.items():
            if rows := [options[name].get_help_record(ctx) for name in names.split() if name in options]:
                with formatter.section(title):
                    formatter.write_dl([row for row in rows if row])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete dtrain's options before the program; those behind it are the program's and not known."""
        words = ctx.params.get("words") or Words()
        return [] if words.program or words.foreign else super().shell_complete(ctx, incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the grammar in one line."""
        return (
            ["[OPTIONS]", "[SPEC]", "PROGRAM.py|--", "..."]
            if self._takes_spec
            else ["[OPTIONS]", "PROGRAM.py", "[ARGS]..."]
        )

    def _split(self, args: Sequence[str]) -> tuple[list[str], Words]:
        options: list[str] = []
        spec: Path | None = None
        rest = list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                return options, Words(spec, None, tuple(rest), foreign=True)
            if word in self._required:
                options += [word, *rest[:1]]
                del rest[:1]
            elif word in self._optional:
                value = rest.pop(0) if rest and _may_be_value(rest[0]) else ""
                options.append(f"{word}={value}")
            elif word.startswith("-") and word != "-":
                options.append(word)
            elif self._takes_spec and spec is None and word.endswith(SPEC_SUFFIXES):
                spec = Path(word)
            else:
                return options, Words(spec, Path(word), tuple(rest))
        return options, Words(spec)


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
    from dtrain_cli.spec.tree import read_tree

    try:
        cluster = read_tree(Path(word)).data.get("cluster")
    except SpecError:
        return False
    return isinstance(cluster, dict) and bool(cluster) and cluster.keys() <= set(ROLES)


def _may_be_value(word: str) -> bool:
    """Return whether a word after an option like `--resume` is its value, not the grammar's next word."""
    return not word.startswith("-") and not word.endswith((".py", *SPEC_SUFFIXES))
