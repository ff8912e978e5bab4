"""The grammar that click does not know: where dtrain's options end and the program's begin.

    dtrain COMMAND [OPTIONS] [SPEC] [OPTIONS] PROGRAM.py [ARGS...]
    dtrain COMMAND [OPTIONS] [SPEC] [OPTIONS] -- EXECUTABLE [ARGS...]

Everything after PROGRAM or ``--`` belongs to the program, whatever it looks like. SPEC is the argument that ends in .yaml, .yml,
.json or .toml.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from dtrain.errors import SpecError

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
        """Make sure that there is something to run, and somewhere to run it.

        Raises:
            SpecError: nothing is named, or what is named does not exist.
        """
        try:
            Path.cwd()
        except FileNotFoundError:
            raise SpecError("the working directory does not exist any more; go to one that does") from None
        if self.foreign:
            if not self.arguments:
                raise SpecError("expected a command after --, such as `dtrain launch -- python program.py`")
            if shutil.which(self.arguments[0]) is None:
                raise SpecError(f"{self.arguments[0]}: no such executable; check the name after -- and PATH")
        elif self.program is None:
            raise SpecError("expected a program, such as `dtrain launch PROGRAM.py`, or `-- COMMAND` for any executable")
        else:
            check_program_file(self.program)


def check_program_file(program: Path) -> None:
    """Make sure that a Python program can be run.

    Raises:
        SpecError: it is no ``.py`` file that can be read.
    """
    if program.suffix in SPEC_SUFFIXES:
        raise SpecError(f"{program}: expected a Python program PROGRAM.py, found a second spec")
    if program.suffix != ".py":
        raise SpecError(f"{program}: expected a Python program PROGRAM.py; write `-- {program}` for any other executable")
    try:
        with program.open("rb"):
            pass
    except OSError as error:
        raise SpecError(f"{program}: cannot read the program: {error.strerror}") from None


class ProgramCommand(click.Command):
    """A command whose last arguments are a program's. Its callback gets them as `words`.

    Args:
        takes_spec: whether a spec may stand before the program.
        optional_values: the options whose value may be left out; they get "" then.
    """

    def __init__(self, *args: Any, takes_spec: bool = True, optional_values: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._takes_spec = takes_spec
        self._optional = frozenset(optional_values)
        with_value = (param for param in self.params if isinstance(param, click.Option) and not param.is_flag)
        self._required = frozenset(name for option in with_value for name in option.opts) - self._optional
        self.params.append(click.Argument(["words"], nargs=-1, type=click.Path()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give click the options alone."""
        options, words = self._split(args)
        super().parse_args(ctx, options)
        ctx.params["words"] = words
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Our options before the program; behind it they would be the program's, which nobody here knows."""
        words = ctx.params.get("words") or Words()
        return [] if words.program or words.foreign else super().shell_complete(ctx, incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The grammar in one line."""
        return ["[OPTIONS]", "[SPEC]", "PROGRAM.py|--", "..."] if self._takes_spec else ["[OPTIONS]", "PROGRAM.py", "[ARGS]..."]

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


def _may_be_value(word: str) -> bool:
    """Whether a word after an option like `--resume` is its value rather than the next thing on the line."""
    return not word.startswith("-") and not word.endswith((".py", *SPEC_SUFFIXES))
