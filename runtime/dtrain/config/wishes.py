"""The settings of `training` in a program's strategy constructor."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from dtrain.config.plain_data.kinds import keys_of, mistakes
from dtrain.config.plain_data.nulls import with_nulls
from dtrain.config.run_spec import RunSpec
from dtrain.config.training_section import DEFAULTS, TrainingSettings, defaults_of
from dtrain.errors import SpecError

LAID_OUT = ("strategy", "chief_trains", "transport")
"""What a launcher has fixed before a program runs: the tasks, which of them train, their transport."""


def checked_wishes(wishes: Mapping[str, Any], who: str) -> TrainingSettings:
    """Check the names and types of what a program said; nulls are as a spec has them.

    Args:
        wishes: as the constructor was given them.
        who: the constructor, for messages.

    Raises:
        SpecError: there is no such field, or its value has another type.
    """
    plain = with_nulls(dict(wishes), TrainingSettings)
    for path, problem in mistakes(plain, TrainingSettings, show=repr):
        if len(path) == 1 and path[0] not in keys_of(TrainingSettings):
            raise SpecError(f"{who}: there is no argument {path[0]!r}{problem.removeprefix('unknown key')}")
        raise SpecError(f"{who}: {'.'.join(map(str, path))}: {problem}")
    return msgspec.convert(plain, TrainingSettings)


def refuse_new_layout(spec: RunSpec, wishes: TrainingSettings, who: str, program: str) -> None:
    """Refuse what a program wishes too late, once a launcher has laid out its cluster.

    Raises:
        SpecError: a wish is another than what is there, with the option that grants it.
    """
    for name in LAID_OUT:
        there = getattr(spec.training, name, DEFAULTS[name])
        wish = wishes.get(name, there)
        if wish != there and name not in spec.said.get("training", {}):
            written = msgspec.json.encode(wish).decode().strip('"')
            option = f"--strategy {written}" if name == "strategy" else f"--set training.{name}={written}"
            raise SpecError(
                f"{who}: {name}={wish!r} comes too late: the cluster is laid out before the program "
                "begins; "
                f"run: dtrain launch {option} {program}"
            )


def different_wish(first: Mapping[str, Any], second: TrainingSettings) -> str | None:
    """Name a field in which a second constructor differs from the first one or from its default."""
    meant = {**defaults_of(cast(TrainingSettings, first)), **first}
    return next((name for name, value in second.items() if value != meant[name]), None)
