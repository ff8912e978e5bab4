"""The program and the spec that the options of a launch name, and whether that spec can be launched.

`launch`, `plan` and `check` all ask here, before anything has been started. The syntax of a program says
which strategy it constructs: nothing of the program is executed.
"""

import ast
import os
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain.cluster.hosts import is_loopback
from dtrain.config import ROLES, Problem, RunSpec
from dtrain.config.choices import On, TlsMode
from dtrain.config.sections import TLS_VARIABLES, missing_secrets
from dtrain.errors import DtrainError, SpecError
from dtrain.formats.remote_files import MASKED
from dtrain.process.assignment import secret_in_file
from dtrain.process.tls_material import read_tls_file
from dtrain.runs.files import RunFiles, default_runs_dir, read_record
from dtrain_cli.code import password_problems
from dtrain_cli.console.streams import say
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.placement import hosts_of, place
from dtrain_cli.plan.ports import address_problems
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.runs.index import find_run, own_record
from dtrain_cli.spec import SpecTree, read_spec
from dtrain_cli.targets.kubernetes import run


def read_request(
    options: LaunchOptions, environment: Mapping[str, str] = os.environ, *, starts: bool = True
) -> tuple[Workload, RunSpec]:
    """Return the workload and the spec, with the security settings of the environment.

    A line names each setting that has no use; `starts` as in `unfit`. Raise a `SpecError` if the spec is
    wrong, or cannot be launched.
    """
    foreign = options.foreign
    spec = read_spec(
        options.earlier or options.spec,
        options.sets,
        {**options.shortcuts, **_strategy_of_program(options)},
        foreign,
        trains=not foreign,
        unfit=partial(unfit, environment=environment, options=options, starts=starts),
        note=say,
    )
    return _workload(options), spec.secured(environment)


def read_named(options: LaunchOptions, **more: Any) -> tuple[Workload, RunSpec]:
    """Return what `read_request` does, with the run's name in the spec."""
    workload, spec = read_request(options, **more)
    return workload, workload.named(spec)


def _strategy_of_program(options: LaunchOptions) -> dict[str, str]:
    named = options.spec or options.earlier or options.shortcuts.get("strategy")
    sets = any(text.startswith(("training=", "training.strategy=")) for text in options.sets)
    if named or sets or options.program is None or (found := constructed_strategy(options.program)) is None:
        return {}
    say(f"strategy: {found[0]}, as {options.program}:{found[1]} says")
    return {"strategy": found[0]}


def _workload(options: LaunchOptions) -> Workload:
    return Workload(options.program, tuple(options.arguments), Path.cwd())


def with_settings_of_run(options: LaunchOptions) -> LaunchOptions:
    """Return the options of a launch that resumes a run and names no SPEC, with the settings of that run.

    Raises:
        SpecError: its settings cannot be had.
        RunError: there is no such run, or its record is damaged or not this user's alone.
    """
    directory = options.run_dir
    if directory is None:
        names = (text.removeprefix("name=") for text in reversed(options.sets) if text.startswith("name="))
        name = next(names, options.shortcuts.get("name")) or _workload(options).named(RunSpec()).name
        directory = find_run(options.resume or name, runs_directory(options)).files.directory
    elif own_record(directory) is None:
        return options  # the launch says that there is no run to resume
    try:
        return replace(options, earlier=_settings_of(RunFiles(directory), options.foreign)[0])
    except (DtrainError, OSError) as error:
        raise SpecError(f"--resume: {error}; name a SPEC beside --resume") from None


def runs_directory(options: LaunchOptions) -> Path:
    return (options.runs_dir or default_runs_dir()).absolute()


def chosen_directory(options: LaunchOptions, name: str | None) -> Path | None:
    """Return the run directory that the user has named or resumes; None: the launch makes a new one.

    With `--resume` alone it is that of the newest run called `name`, or of all without a name. Raise a
    `RunNotFoundError` if there is none.
    """
    if options.run_dir is not None:
        return options.run_dir.absolute()
    if options.resume is None:
        return None
    return find_run(options.resume or name, runs_directory(options)).files.directory


def other_settings(files: RunFiles, spec: RunSpec, foreign: bool) -> str | None:
    """Return what differs from the settings of the run that is resumed: ``updates sync -> async``.

    None: nothing does, or those cannot be read.
    """
    try:
        _, before = _settings_of(files, foreign)
    except (DtrainError, OSError):
        return None
    both = (msgspec.to_builtins(replace(each, said={})) for each in (before, spec))
    return ", ".join(_differences(*both)) or None


def _settings_of(files: RunFiles, foreign: bool) -> tuple[SpecTree, RunSpec]:
    """Return the settings of a run, without the wishes of its program: as they were written, and checked.

    Raises:
        RunError: they are damaged.
        SpecError: they are not there, are wrong, or lack the password of a URL, which no record holds.
        OSError: they cannot be read.
    """
    file = files.kept_spec if files.kept_spec.exists() else files.spec
    if (record := read_record(file, RunSpec)) is None:
        raise SpecError(f"the settings of the run are gone: there is no {file}")
    text = msgspec.json.encode(record)
    if f"://{MASKED}@".encode() in text:
        raise SpecError(f"{file} does not keep the user and password of a URL")
    data = msgspec.json.decode(text)
    said = data.pop("said")
    tree = SpecTree(str(file), {**data, "training": {}, "wait": None, **said}, kept=True)
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


_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.TryStar, ast.Match)
CONSTRUCTORS = {
    "MirroredStrategy": "mirrored",
    "CentralStorageStrategy": "central_storage",
    "MultiWorkerMirroredStrategy": "multi_worker_mirrored",
    "ParameterServerStrategy": "parameter_server",
    "PipelineStrategy": "pipeline",
}
"""The strategy of the spec that each constructor of dtrain asks for."""


def constructed_strategy(program: Path) -> tuple[str, int] | None:
    """Return the strategy that a program which compiles constructs, and in which line.

    None is returned where syntax does not tell: the program constructs no strategy, or several kinds, or one
    inside a branch; it uses a constructor without calling it; or it passes `strategy=` or `**arguments`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nodes = list(ast.walk(ast.parse(program.read_bytes())))
    names = _imported(nodes)
    mains = {
        id(node)
        for node in nodes
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__ == ")
    }
    branches = (node for node in nodes if isinstance(node, _BRANCHES) and id(node) not in mains)
    unsure = {id(inner) for branch in branches for inner in ast.walk(branch)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {id(call.func) for call in calls if not {key.arg for key in call.keywords} & {None, "strategy"}}
    found: dict[str, int] = {}
    for node in nodes:
        module, _, name = _dotted(node, names).rpartition(".")
        if isinstance(node, ast.expr) and name in CONSTRUCTORS and module.partition(".")[0] == "dtrain":
            if id(node) in unsure or id(node) not in called:
                return None
            found[CONSTRUCTORS[name]] = min(node.lineno, found.get(CONSTRUCTORS[name], node.lineno))
    return found.popitem() if len(found) == 1 else None


def _imported(nodes: list[ast.AST]) -> dict[str, str]:
    """Return the dotted path that each imported name refers to; "" for a name with several meanings."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = f"{'.' * node.level}{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for each in node.names:
                top = each.name.partition(".")[0]
                name, meant = each.asname or top, module + (each.name if each.asname else top)
                names[name] = meant if names.get(name, meant) == meant else ""
    return names


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str:
    """Return the dotted path that an expression of names and dots refers to; "" for other expressions."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def unfit(
    spec: RunSpec, environment: Mapping[str, str], options: LaunchOptions, starts: bool
) -> Iterator[Problem]:
    """Yield what makes a valid spec unfit for a launch.

    `starts`: whether its tasks are to be started here; else they may be by hand, each on its host.
    """
    match spec.on:
        case On.LOCAL:
            counts = [count for role in ROLES[:3] if (count := getattr(spec.cluster, role))]
            if starts or any(isinstance(count, int) for count in counts):
                yield from address_problems(spec.cluster)
                yield from () if options.foreign else _certificates(spec, environment)
        case On.SSH:
            try:
                place(spec.cluster, hosts_of(spec), spec.place)
            except SpecError as error:
                key, _, text = str(error).partition(": ")
                yield (key,), text
        case On.SLURM if spec.slurm.servers is not None and spec.hosts:
            yield ("slurm", "servers"), "a job whose nodes `hosts` names has one part; leave one of them out"
        case On.KUBERNETES | On.TRAINER:
            yield from (*run.problems(spec), *password_problems(spec, options.arguments))
        case On.SKYPILOT | On.RAY:
            yield from (*run.address_problems(spec), *password_problems(spec, options.arguments))
    if spec.on not in (On.KUBERNETES, On.TRAINER) or spec.kubernetes.secret is None:
        yield from _secrets(spec, environment)


def _secrets(spec: RunSpec, environment: Mapping[str, str]) -> Iterator[Problem]:
    later = spec.on in (On.SKYPILOT, On.RAY)
    if not later and (reason := missing_secrets(spec.secrets, environment)):
        instead = "; or name a Secret that has them: kubernetes.secret" if spec.on is On.KUBERNETES else ""
        yield ("secrets",), f"{reason.removeprefix('secrets: ')}{instead}"
    try:
        secret_in_file(spec.security)
    except SpecError as error:
        yield ("security", "secret_file"), str(error)


def _certificates(spec: RunSpec, environment: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the first file of TLS that a task here could not read."""
    security = spec.security.completed(environment)
    given = (getattr(spec.cluster, role) for role in ROLES)
    far = any(not is_loopback(address) for each in given if not isinstance(each, int) for address in each)
    if security.tls == TlsMode.OFF or (security.tls == TlsMode.AUTO and not far):
        return
    for role, name in product(ROLES, TLS_VARIABLES):
        own = (security.of_task(role, index) for index in range(spec.cluster.count(role)))
        for path in filter(None, dict.fromkeys(getattr(each, name) for each in own)):
            try:
                read_tls_file(Path(path).expanduser(), private=name == "key_file")
            except SpecError as error:
                yield ("security", name), str(error)
                return
