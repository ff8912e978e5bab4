"""Commands of dtrain in this process, and what each says of itself: its help, and its options with their defaults."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import click

ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
"""What makes texts the same on every machine."""


class _Kept(io.BytesIO):
    """Bytes that stay when the stream over them is closed."""

    def close(self) -> None:
        """Stay open."""


def dtrain(*words: str, folder: Path, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run a command that executes no other program; return its exit code and what it printed, without the folder."""
    kept = _Kept(), _Kept()
    streams = [io.TextIOWrapper(each, "utf-8") for each in kept]
    variables = {**ENVIRONMENT, "DTRAIN_RUNS_DIR": str(folder / "runs"), **(environment or {})}
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.multiple(sys, argv=["dtrain", *words], stdout=streams[0], stderr=streams[1]),
        contextlib.chdir(folder),
    ):
        os.environ.pop("TF_CONFIG", None) if "TF_CONFIG" not in variables else None
        try:
            _main().main()
        except SystemExit as ended:
            code = ended.code
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    printed = [each.getvalue().decode().replace(str(folder), "FOLDER") for each in kept]
    return code, printed[0], printed[1]


def _main():  # type: ignore[no-untyped-def]
    """Return the module of the command; importing it changes what signals do to a process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    import dtrain_cli.main

    for number, handler in before.items():
        signal.signal(number, handler)
    return dtrain_cli.main


def pages(folder: Path) -> dict[str, str]:
    """Return a page of help for each command, and one with every option."""
    found, options = {}, []
    for words, command in _commands((), _main().cli):
        code, out, err = dtrain(*words, "--help", folder=folder)
        assert (code, err) == (0, ""), f"{' '.join(words)} --help: {code} {err}"
        found[f"help/{' '.join(('dtrain', *words)).replace(' ', '_')}.txt"] = out
        options += [f"{' '.join(('dtrain', *words))} {line}\n" for line in _options(command)]
    assert len(found) > 20, "the commands"
    return found | {"options.txt": "".join(sorted(options))}


def _commands(
    words: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _commands((*words, name), inner)


def _options(command: click.Command) -> Iterator[str]:
    for each in command.get_params(click.Context(command)):
        names = " ".join(sorted((*each.opts, *each.secondary_opts)))
        if isinstance(each, click.Argument):
            names = each.make_metavar(click.Context(command))
        kind = getattr(each.type, "choices", None) or each.type.name
        bounds = [
            f"{bound} {value}"
            for bound in ("min", "max")
            if (value := getattr(each.type, bound, None)) is not None
        ]
        marks = [mark for mark in ("is_flag", "required", "multiple", "hidden") if getattr(each, mark, False)]
        default = (
            f"default {each.default!r}" if isinstance(each.default, bool | int | float | str | tuple) else ""
        )
        text = ", ".join(
            filter(
                None,
                (str(kind) if isinstance(kind, str) else " ".join(map(str, kind)), *bounds, *marks, default),
            )
        )
        yield f"{names}: {text}"
