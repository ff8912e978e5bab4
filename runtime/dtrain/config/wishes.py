"""What a program says of `training` in its strategy's constructor, and how that meets the spec: CONTRACT
section 3, "Precedence".

    --set  >  shortcut  >  spec  >  the program's constructor  >  default

The launcher lays the first three over each other and hands every task the result with the keys that were said
(`RunSpec.said`).
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from dtrain.config.nulls import with_nulls
from dtrain.config.run_spec import RunSpec
from dtrain.config.training_section import TrainingSection
from dtrain.errors import SpecError

Wishes = Mapping[str, Any]
"""Fields of the `training` section, by name; only those that the program named."""

LAID_OUT = ("strategy", "chief_trains", "transport")
"""What a launcher has done by the time that a program speaks: which tasks there are, which of them train, how
they are reached.
"""


def checked_wishes(wishes: Wishes, who: str) -> Wishes:
    """Check the names and types of what a program said; nulls are as a spec has them.

    Args:
        wishes: as the constructor was given them.
        who: the constructor, for messages.

    Raises:
        SpecError: there is no such field, or its value has another type.
    """
    hints = get_type_hints(TrainingSection)
    kinds = {field.name: hints[field.name] for field in fields(TrainingSection)}
    for name in wishes:
        if name not in kinds:
            near = get_close_matches(name, kinds, 1)
            raise SpecError(
                f"{who}: there is no argument {name!r}" + (f"; do you mean {near[0]}?" if near else "")
            )
    checked = {}
    for name, value in wishes.items():
        kind = kinds[name]
        try:
            checked[name] = msgspec.convert(with_nulls(value, kind), kind)
        except msgspec.ValidationError:
            expected = (
                " or ".join(map(str, get_args(kind)))
                if get_origin(kind) is Literal
                else getattr(kind, "__name__", kind)
            )
            raise SpecError(f"{who}: {name}: expected {expected}, found {value!r}") from None
    return checked


def with_wishes(spec: RunSpec, wishes: Wishes, who: str) -> RunSpec:
    """Return the resolved spec of a task whose program has said something of `training`; what the spec's user
    said wins.

    Args:
        spec: as the launcher or the user's spec file gives it.
        wishes: checked.
        who: the constructor, for messages.

    Raises:
        SpecError: together they make no sense.
    """
    free = {name: value for name, value in wishes.items() if f"training.{name}" not in spec.said}
    merged = replace(spec, training=replace(spec.training, **free))
    for path, problem in merged.problems():
        if path[0] == "training":
            concerned = dict.fromkeys([*(name for name in wishes if name not in free), str(path[1])])
            said = [
                f"{name}: {getattr(spec.training, name)}"
                for name in concerned
                if f"training.{name}" in spec.said
            ]
            note = f" (the spec or the command line says {', '.join(said)})" if said else ""
            raise SpecError(f"{who}: {'.'.join(map(str, path[1:]))}: {problem}{note}")
    return merged.resolved()


def refuse_new_layout(spec: RunSpec, wishes: Wishes, who: str, program: str) -> None:
    """Refuse what a program wishes too late, once a launcher has laid out its cluster.

    Raises:
        SpecError: a wish is another than what is there, with the option that grants it.
    """
    for name in LAID_OUT:
        there = getattr(spec.training, name)
        if wishes.get(name, there) != there and f"training.{name}" not in spec.said:
            written = msgspec.json.encode(wishes[name]).decode().strip('"')
            option = f"--strategy {written}" if name == "strategy" else f"--set training.{name}={written}"
            raise SpecError(
                f"{who}: {name}={wishes[name]!r} comes too late: the cluster is laid out before the program "
                "begins; "
                f"run: dtrain launch {option} {program}"
            )


def different_wish(first: Wishes, second: Wishes) -> str | None:
    """Name a field of which a second constructor says something else than the first one said or left at its
    default.
    """
    meant = replace(TrainingSection(), **first)
    return next((name for name, value in second.items() if value != getattr(meant, name)), None)
