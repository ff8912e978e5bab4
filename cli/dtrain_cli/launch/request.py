"""The program and the spec that the options of a launch name."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dtrain.config import RunSpec
from dtrain.errors import DtrainError, SpecError
from dtrain.formats.masked_urls import MASKED
from dtrain.runs.files import RunFiles, default_runs_dir, read_record
from dtrain_cli.console.streams import say
from dtrain_cli.launch.fitness import unfit
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.program_strategy import constructed_strategy
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.runs.index import find_run, own_record
from dtrain_cli.spec.file import read_spec
from dtrain_cli.spec.tree import SpecTree


def read_request(
    options: LaunchOptions, environment: Mapping[str, str] = os.environ, *, starts: bool = True
) -> tuple[Workload, RunSpec]:
    """Return the workload and the spec, with what the environment says about security; name in a line each
    setting that has no use.

    Args:
        options: of the command.
        environment: of the user.
        starts: see `unfit`.

    Raises:
        SpecError: the spec is wrong, or cannot be launched.
    """
    foreign = options.foreign
    spec = read_spec(
        options.earlier or options.spec,
        options.sets,
        {**options.shortcuts, **_strategy_of_program(options)},
        foreign,
        trains=not foreign,
        unfit=partial(unfit, environment=environment, foreign=foreign, starts=starts),
        note=say,
    )
    return _workload(options), spec.secured(environment)


def _strategy_of_program(options: LaunchOptions) -> dict[str, str]:
    """Return the strategy that the program constructs, where the user has named neither a SPEC nor one."""
    said = options.spec or options.earlier or options.shortcuts.get("strategy")
    sets = any(text.startswith(("training=", "training.strategy=")) for text in options.sets)
    if said or sets or options.program is None or (found := constructed_strategy(options.program)) is None:
        return {}
    say(f"strategy: {found[0]}, as {options.program}:{found[1]} says")
    return {"strategy": found[0]}


def _workload(options: LaunchOptions) -> Workload:
    return Workload(options.program, tuple(options.arguments), Path.cwd())


def with_settings_of_run(options: LaunchOptions) -> LaunchOptions:
    """Return the options of a launch that resumes a run and names no SPEC, with the settings of that run.

    Raises:
        SpecError: its settings cannot be had.
        RunNotFoundError: there is no such run.
        RunError: its record is damaged, or not this user's alone.
    """
    directory = options.run_dir
    if directory is None:
        names = (text.removeprefix("name=") for text in reversed(options.sets) if text.startswith("name="))
        name = next(names, options.shortcuts.get("name")) or _workload(options).named(RunSpec()).name
        runs_dir = (options.runs_dir or default_runs_dir()).absolute()
        directory = find_run(options.resume or name, runs_dir).files.directory
    elif own_record(directory) is None:
        return options  # the launch says that there is no run to resume
    try:
        return replace(options, earlier=_settings_of(RunFiles(directory), options.foreign)[0])
    except (DtrainError, OSError) as error:
        raise SpecError(f"--resume: {error}; name a SPEC beside --resume") from None


def other_settings(files: RunFiles, spec: RunSpec, foreign: bool) -> str | None:
    """Return what differs from the settings of the run that is resumed: ``updates sync -> async``.

    None: nothing does, or those cannot be read.
    """
    try:
        _, before = _settings_of(files, foreign)
    except (DtrainError, OSError):
        return None
    # asdict: what msgspec has made of a section lacks, for msgspec, the fields that have their defaults.
    both = (msgspec.to_builtins(asdict(replace(each, said={}))) for each in (before, spec))
    return ", ".join(_differences(*both)) or None


def _settings_of(files: RunFiles, foreign: bool) -> tuple[SpecTree, RunSpec]:
    """Return what a run was told, without what its program has wished: as it was written, and checked.

    Raises:
        RunError: it is damaged.
        SpecError: it is not there, is wrong, or lacks the password of a URL, which no record holds.
        OSError: it cannot be read.
    """
    file = files.kept_spec if files.kept_spec.exists() else files.spec
    if (record := read_record(file, RunSpec)) is None:
        raise SpecError(f"the settings of the run are gone: there is no {file}")
    text = msgspec.json.encode(record)
    if f"://{MASKED}@".encode() in text:
        raise SpecError(f"{file} does not keep the user and password of a URL")
    data = msgspec.json.decode(text)
    said = data.pop("said")
    tree = SpecTree(str(file), {**data, "training": {}, "wait": None, **said})
    return tree, read_spec(tree, foreign=foreign, trains=not foreign)


def _differences(before: dict[str, Any], now: dict[str, Any], section: str = "") -> Iterator[str]:
    """Yield each setting that differs with both values; of `training`, among the keys that both have."""
    for name, old in before.items():
        new = now.get(name, old)
        same = isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys()
        if same or name == "training":
            yield from _differences(old, new, "" if name in ("cluster", "training") else f"{section}{name}.")
        elif old != new and name != "kind":
            old_text, new_text = (msgspec.json.encode(value).decode().strip('"') for value in (old, new))
            yield f"{section}{name} {old_text} -> {new_text}"
