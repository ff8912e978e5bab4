"""Makes the pages of the command line and of the keys of a spec; `python docs/make_reference.py` runs it too.

What a key is comes from the classes that read a spec, what a command takes from the commands themselves, and
their exit codes from what tests have seen (tests/net/frozen/exit_codes.txt). Only the reasons to set a key
are written by hand, in docs/reference/when_to_set.txt; a key without a reason is an error, and so is a reason
without a key.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import msgspec

from dtrain import errors
from dtrain.config.plain_data import NAMES, is_section, keys_of, members_of, words_of
from dtrain.config.run_spec import RunSpec, WrittenSpec
from dtrain.config.targets import CodeSection
from dtrain.config.training_section import DEFAULTS, TrainingSettings
from dtrain_cli.main import SECTIONS, cli

REFERENCE = Path(__file__).parent / "reference"
EXIT_CODES = Path(__file__).parents[1] / "tests" / "net" / "frozen" / "exit_codes.txt"
MADE = "*Made by `python docs/make_reference.py`; do not edit this page.*"
UNITS = {
    "_mbit_s": "Mbit/s",
    "_ms": "milliseconds",
    "_s": "seconds",
    "_hours": "hours",
    "_step": "steps",
    "_steps": "steps",
    "staleness": "steps",
    "staleness_bound": "steps",
    "workers": "replicas",
    "slow": "times the computing time",
}
"""The unit of a number, by the end of its key."""
CODE_DEFAULTS = {"from": ".", "exclude": ()}
"""The section is a mapping, whose defaults are where it is read."""


def own(section: Any) -> dict[str, Any]:
    """Return the defaults of a section's keys; a key that has none must be given."""
    if section is TrainingSettings:
        return DEFAULTS | {"strategy": "parameter_server", "updates": "async", "too_few": "wait"}
    if section is CodeSection:
        return CODE_DEFAULTS
    fields = msgspec.structs.fields(RunSpec if section is WrittenSpec else section)
    return {
        each.name: each.default_factory() if each.default is msgspec.NODEFAULT else each.default
        for each in fields
        if not each.required
    }


def rows(section: Any, above: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yield each key of a section and of those below it: its path, its type, its default as text."""
    defaults = own(section)
    for name, kind in keys_of(section).items():
        path = f"{above}{name}"
        below = list(sections_below(path, kind))
        if not below or get_origin(members_of(kind)[-1]) is tuple:
            yield path, kind, default_text(defaults, name)
        for inner, part in below:
            yield from rows(part, f"{inner}.")


def sections_below(path: str, kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the sections that a key holds, itself or as its items, each with the path of its keys."""
    for member in members_of(kind):
        items = [each for each in get_args(member) if each is not ...]
        if is_section(member):
            yield path, member
        elif get_origin(member) is dict and is_section(items[1]):
            yield f"{path}.ROLE", items[1]
        elif get_origin(member) is tuple:
            yield from (
                (f"{path}[]", each) for item in items for each in members_of(item) if is_section(each)
            )


def default_text(defaults: dict[str, Any], name: str) -> str:
    """Return a default as a spec writes it."""
    if name not in defaults:
        return "must be given"
    plain = msgspec.to_builtins(defaults[name])
    return f"`{json.dumps(plain)}`" if plain or plain in (0, False) else "none"


def type_text(kind: Any) -> str:
    """Return in words which values a type has."""
    told = []
    for member in members_of(kind):
        if words := words_of(member):
            told.append(", ".join(f"`{each}`" for each in words))
        elif get_origin(member) is tuple:
            told.append("a list" if get_args(member)[1:] == (...,) else "a pair")
        else:
            told.append("a mapping" if is_section(member) or get_origin(member) is dict else NAMES[member])
    return " or ".join(told)


def unit(path: str) -> str:
    """Return the unit of a key's number."""
    return next((name for end, name in UNITS.items() if path.endswith(end)), "")


def when_to_set() -> dict[str, str]:
    """Return the reason to set each key, by its path."""
    lines = (REFERENCE / "when_to_set.txt").read_text().splitlines()
    return {key: text for key, _, text in (line.partition(": ") for line in lines if line[:1] != "#")}


def spec_keys() -> str:
    """Return the page of all keys."""
    reasons, groups = when_to_set(), dict[str, list[str]]()
    for path, kind, default in rows(WrittenSpec):
        group = re.split(r"[.\[]", path)[0] if "." in path else "Top level"
        reason = reasons.pop(path)
        cells = (f"`{path}`", type_text(kind), unit(path), default, f"{reason}.")
        groups.setdefault(group, []).append(f"| {' | '.join(cells)} |")
    assert not reasons, f"docs/reference/when_to_set.txt: no such keys: {', '.join(reasons)}"
    lines = [
        "# Keys of a spec",
        "",
        "Every key with its type, its default, and when one wants it. [The cluster spec](spec.md) says what",
        "each one does. On the command line `--set KEY=VALUE` sets any of them. `ROLE` stands for `chief`, ",
        "`worker`, `ps` or `evaluator`, and `[]` for each item of a list.",
    ]
    for group, found in groups.items():
        lines += [
            "",
            f"## {group}",
            "",
            "| key | type | unit | default | set it when |",
            "|---|---|---|---|---|",
            *found,
        ]
    return "\n".join([*lines, "", MADE, ""])


def command_text(words: str, command: click.Command, codes: dict[str, str]) -> list[str]:
    """Return the part of the page about one command, and those below it."""
    context = click.Context(command, info_name=f"dtrain {words}", **cli.context_settings)
    command._help_option = None  # click keeps that of the first context, which may have no -h
    lines = ["", f"## dtrain {words}", "", "```text", command.get_help(context).replace("\b\n", ""), "```"]
    if seen := {
        what: code for what, code in codes.items() if re.match(rf"{re.escape(words)}\b(?![ ,]*--help)", what)
    }:
        lines += ["", "| seen by the tests | exit code |", "|---|---|"]
        lines += [f"| `{words}`{what.removeprefix(words)} | {code} |" for what, code in seen.items()]
    for name, inner in getattr(command, "commands", {}).items():
        lines += command_text(f"{words} {name}", inner, {})
    return lines


def error_rows() -> list[str]:
    """Return a row of each exception that dtrain raises on purpose, with the exit code of a command."""
    found = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.DtrainError)
    ]
    lines = [
        "",
        "## Errors",
        "",
        "| error | exit code of a command that it ends | what it means |",
        "|---|---|---|",
    ]
    for each in sorted(found, key=lambda one: (one.exit_code, one.__name__)):
        name, first = each.__name__, (each.__doc__ or "").split("\n\n")[0]
        lines.append(
            f"| [{name}](api/errors.md#{name.lower()}) | {each.exit_code} | {' '.join(first.split())} |"
        )
    return lines


def command_line() -> str:
    """Return the page of all commands."""
    codes = dict(line.rsplit(": ", 1) for line in EXIT_CODES.read_text().splitlines() if line)
    lines = [
        "# The command line",
        "",
        "What `dtrain COMMAND --help` prints, for every command, and the exit codes that the tests have seen",
        "of it. [Commands](commands.md) says what holds for all commands, and what each",
        "[exit code](commands.md#exit-codes) means. [Errors](#errors) stand at the end.",
    ]
    for title, commands in SECTIONS.items():
        links = ", ".join(f"[{each.name}](#dtrain-{each.name})" for each in commands)
        lines += ["", f"{title}: {links}."]
    for each in (each for commands in SECTIONS.values() for each in commands):
        lines += command_text(str(each.name), each, codes)
    return "\n".join([*lines, *error_rows(), "", MADE, ""])


def pages() -> dict[str, str]:
    """Return both pages by their files' names."""
    return {"spec_keys.md": spec_keys(), "command_line.md": command_line()}


def write() -> None:
    """Write both pages."""
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
