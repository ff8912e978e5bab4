"""The spec of a run: a file, the shortcuts and `--set` on top, checked as a whole before anything starts.

Precedence rises from the file over the shortcuts to `--set`. All mistakes are reported at once, each with its
place. The embedded default needs no YAML, which would cost every plain `dtrain launch PROGRAM.py` its import.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dtrain.config import Problem, RunSpec, default_cluster, resolve
from dtrain.errors import SpecError
from dtrain_cli.spec.tree import Override, SpecTree, parse_yaml, read_tree

MISTAKES_MAX = 100
LINE_MAX = 1000
"""Characters of one mistake: a value of a spec may have 256 KiB."""
SHORTCUTS = {
    "workers": ("cluster", "worker"),
    "ps": ("cluster", "ps"),
    "evaluator": ("cluster", "evaluator"),
    "strategy": ("training", "strategy"),
    "updates": ("training", "updates"),
    "backup_workers": ("training", "backup_workers"),
    "staleness_bound": ("training", "staleness_bound"),
    "start_timeout": ("wait", "start_s"),
    "grace": ("wait", "grace_s"),
    "name": ("name",),
    "on": ("on",),
    "hosts": ("hosts",),
    "tls_ca": ("security", "ca_file"),
    "tls_cert": ("security", "cert_file"),
    "tls_key": ("security", "key_file"),
    "secret_file": ("security", "secret_file"),
    "insecure": ("security", "insecure"),
}
"""Which field each shortcut of the command line gives."""


def read_spec(
    source: Path | SpecTree | None,
    sets: Sequence[str] = (),
    shortcuts: Mapping[str, Any] | None = None,
    foreign: bool = False,
    trains: bool = False,
    unfit: Callable[[RunSpec], Iterable[Problem]] = lambda spec: (),
    note: Callable[[str], None] = lambda text: None,
) -> RunSpec:
    """Read and check a spec.

    Args:
        source: the file, or what was read from one; None for the embedded default.
        sets: ``KEY=VALUE`` of each `--set`; the value is YAML, the key may hold task names
            (``simulate.slow.worker:2``).
        shortcuts: values by the names of `SHORTCUTS`; those that are None were not given.
        foreign: whether it is for `-- COMMAND`: the default has no evaluator, and less can be simulated.
        trains: whether a program is to train on the cluster that it describes, which must have what that
            needs, and is then what its strategy makes of it; a spec beside a TF_CONFIG may leave the cluster
            to that.
        unfit: yields what else is wrong with a spec that is right in itself.
        note: is called with a line for each setting that has no use.

    Raises:
        SpecError: everything that is wrong, a line each.
    """
    default = SpecTree("the default spec", {"cluster": {}})
    tree = read_tree(source) if isinstance(source, Path) else source or default
    given = [_shortcut(name, value) for name, value in (shortcuts or {}).items() if value is not None]
    lines = _apply(tree, given, sets)
    if source is None:
        _add_default_cluster(tree.data, foreign)
    spec, problems = resolve(tree.data, foreign, trains)
    if spec is not None and not lines:
        problems = list(unfit(spec))
    problems.sort(key=lambda problem: tree.position(problem[0]))
    lines += [tree.describe(path, text) for path, text in problems[:MISTAKES_MAX]]
    if lines or spec is None:
        raise SpecError("\n".join(_cut(lines, len(problems))))
    for path, text in spec.unused():
        note(tree.describe(path, text))
    return spec.resolved() if foreign or trains else spec


def _cut(lines: list[str], problems: int) -> list[str]:
    """Return lines of a length that a terminal shows, and how many mistakes there are besides."""
    shown = [line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}..." for line in lines[:MISTAKES_MAX]]
    more = max(problems, len(lines)) - len(shown)
    return [*shown, f"and {more} more mistakes"] if more > 0 else shown


def _add_default_cluster(data: dict[str, Any], foreign: bool) -> None:
    """Add the tasks of which no option has said how many there are."""
    training = data.get("training")
    strategy = training.get("strategy") if isinstance(training, dict) else None
    default = asdict(default_cluster(strategy if isinstance(strategy, str) else ""))
    if foreign:
        default["evaluator"] = 0
    if isinstance(data["cluster"], dict):
        data["cluster"] = {**default, **data["cluster"]}


def _shortcut(name: str, value: Any) -> Override:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        label = option if value else f"--no-{option[2:]}"
        return Override(label, SHORTCUTS[name], int(value) if name == "evaluator" else value)
    return Override(f"{option} {value if str(value).isprintable() else repr(value)}", SHORTCUTS[name], value)


def _apply(tree: SpecTree, shortcuts: list[Override], sets: Sequence[str]) -> list[str]:
    """Put all overrides into the tree; what could not be, a line each."""
    overrides = list(shortcuts)
    lines = []
    for text in sets:
        try:
            overrides.append(_set(text))
        except SpecError as error:
            lines.append(str(error))
    for override in overrides:
        try:
            tree.override(override)
        except SpecError as error:
            lines.append(str(error))
    return lines


def _set(text: str) -> Override:
    key, equals, value = text.partition("=")
    path = tuple(key.split("."))
    if not equals or not all(path):
        raise SpecError(f"--set {text}: expected KEY=VALUE such as cluster.worker=8")
    try:
        return Override(f"--set {text}", path, parse_yaml(value, "value"))
    except SpecError:
        raise SpecError(
            f"--set {text}: expected a YAML value after the '=', such as 8 or [a:1, b:2]"
        ) from None
