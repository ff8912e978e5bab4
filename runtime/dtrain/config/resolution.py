"""Precedence of settings, and those of a program's strategy constructor.

    default  <  the program's constructor  <  spec  <  shortcut  <  --set

A reader of a spec lays the last three over each other and calls `resolve`; a task adds its program's wishes
with `with_program`. Every check of a setting is made here.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec.structs import asdict, replace

from dtrain.config.plain_data import KeyPath, Problem, below, keys_of, mistakes, with_nulls
from dtrain.config.run_spec import RunSpec, WrittenSpec
from dtrain.config.sections import DEFAULT_RESTART
from dtrain.config.training_section import (
    DEFAULTS,
    TrainingSettings,
    kind_of,
    meaningful,
    replicas_problems,
    too_many_together,
    training_section,
)
from dtrain.config.training_section import problems as training_problems
from dtrain.errors import SpecError

_ANY_CLUSTER = {"chief": 1, "worker": 10**6, "ps": 10**6, "evaluator": 1}
"""Has every task that a spec may name: it stands in for a cluster section that cannot be read."""
_FIELD_DEPTH = {"restart": 3, "secrets": 1, "hosts": 1}
"""The number of keys that lead to a field where it is not two: the section's and the field's."""


def resolve(
    written: dict[str, Any], foreign: bool = False, trains: bool = False, alone: bool = False
) -> tuple[RunSpec | None, list[Problem]]:
    """Check what a spec and the options say, and lay it over the defaults.

    Args:
        written: plain data in which the options already lie over the spec.
        foreign: whether a command that knows nothing of dtrain runs on the cluster: less can be simulated.
        trains: whether a program is to train on the cluster, which must have what that needs.
        alone: whether one process trains without a cluster, which takes from the spec what it can mean.

    Returns:
        The spec, or None if it cannot be used, and everything that is wrong with it. Rules do not see a field
        whose type is wrong, so that one mistake is not reported as three.
    """
    said = {key: value for key, value in with_nulls(written, WrittenSpec).items() if value is not None}
    problems = list(mistakes(said, WrittenSpec, show=_as_json))
    broken = {path[: _FIELD_DEPTH.get(str(path[0]), 2)] for path, _ in problems}
    sound = _pruned(said, broken)
    if any(path[0] == "cluster" for path in broken):
        sound["cluster"] = {**_ANY_CLUSTER, **sound.get("cluster", {})}
    settings = cast(TrainingSettings, sound.get("training", {}))
    if alone:
        settings = meaningful({**settings, "strategy": "single"})
        sound = {**sound, "training": settings}
    spec = _built(sound, settings)
    ruled = [*below(("training",), training_problems(settings)), *spec.problems()]
    ruled += below(("simulate",), spec.simulate.foreign_problems()) if foreign else ()
    ruled += spec.program_problems() if trains else ()
    problems += [each for each in ruled if not broken or not _follows_from(each, broken)]
    return (None if problems else spec), problems


def with_program(spec: RunSpec, program: TrainingSettings, who: str) -> RunSpec:
    """Return the spec of a task whose program `who` has said something of `training`; the spec's user wins.

    Raises:
        SpecError: together they make no sense.
    """
    said = spec.said.get("training", {})
    settings = cast(TrainingSettings, {**program, **said})
    if "strategy" in said:  # the program was written for another one, perhaps
        settings = meaningful(settings, kept=said)
    merged = replace(spec, training=training_section(**settings))
    ruled = [*training_problems(settings), *replicas_problems(merged.training, merged.replicas)]
    ruled += too_many_together(merged.training, merged.replicas)
    for path, problem in ruled:
        overruled = [name for name in program if name in said]
        concerned = dict.fromkeys([*overruled, str(path[0])])
        note = ", ".join(
            f"{name}: {_as_json(said[name]).strip(chr(34))}" for name in concerned if name in said
        )
        where = f" (the spec or the command line says {note})" if note else ""
        raise SpecError(f"{who}: {'.'.join(map(str, path))}: {problem}{where}")
    return merged.resolved()


def _built(sound: dict[str, Any], settings: TrainingSettings) -> RunSpec:
    kinds = keys_of(WrittenSpec)
    sections = {key: value for key, value in sound.items() if key != "training"}
    if "restart" in sections:
        sections["restart"] = {
            role: {**asdict(DEFAULT_RESTART[role]), **rule} for role, rule in sections["restart"].items()
        }
    fields = {key: msgspec.convert(value, kinds[key]) for key, value in sections.items()}
    said: dict[str, Any] = {key: sound[key] for key in ("name", "training", "wait") if key in sound}
    return RunSpec(**fields, training=training_section(**settings), said=_with_implied(said))


def _with_implied(said: dict[str, Any]) -> dict[str, Any]:
    """Add what follows from the words themselves: no staleness is synchronous training without backups."""
    training = said.get("training", {})
    if training.get("staleness_bound") != 0 or training.get("updates") == "sync":
        return said
    return {**said, "training": {**training, "updates": "sync", "backup_workers": 0}}


def _pruned(data: dict[str, Any], broken: set[KeyPath]) -> dict[str, Any]:
    kept = {key: value for key, value in data.items() if (key,) not in broken}
    for key in kept.keys() & {str(path[0]) for path in broken}:
        kept[key] = _pruned(kept[key], {path[1:] for path in broken if path[0] == key})
    return kept


def _follows_from(problem: Problem, broken: set[KeyPath]) -> bool:
    """Return whether a rule may be broken only because a field that it speaks of was left out."""
    path, text = problem
    words = re.findall(r"\w+", text)
    if "replicas" in words and any(left_out[0] == "cluster" for left_out in broken):
        return True
    return any(
        left_out[:1] == path[:1] and (len(left_out) == 1 or left_out[-1] in (*path[1:], *words))
        for left_out in broken
    )


def _as_json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


LAID_OUT = ("strategy", "chief_trains", "transport")
"""What a launcher has fixed before a program runs: the tasks, which of them train, their transport."""


def checked_wishes(wishes: Mapping[str, Any], who: str) -> TrainingSettings:
    """Return what a program said to its constructor `who`, with nulls as a spec has them.

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
    defaults = msgspec.structs.asdict(kind_of(cast(TrainingSettings, first))())
    meant = {**DEFAULTS, **defaults, **first}
    return next((name for name, value in second.items() if value != meant[name]), None)
