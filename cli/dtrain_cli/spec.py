"""The spec of a run: read, merged with options, and checked as a whole before anything starts.

Precedence rises from the file over the shortcuts to `--set`. All mistakes are reported at once, each with
its place: a line and column of a file, or an option. The embedded default needs no YAML, which would cost
every plain `dtrain launch PROGRAM.py` its import.

YAML (and JSON, which is YAML) goes through ruamel.yaml's round-trip tree, which knows positions; TOML
through tomllib, which does not. Aliases are refused, because a few of them make billions of values; tags
mean nothing here, so nothing is ever executed.
"""

import contextlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from dtrain.config import KeyPath, Problem, RunSpec, default_cluster, is_none, resolve
from dtrain.config.plain_data import below, mistakes, with_nulls
from dtrain.errors import SpecError
from dtrain.formats.bounded_reading import open_regular

BYTES_MAX = 256 * 1024
DEPTH_MAX = 32
"""Levels of lists and mappings. No key of a spec lies deeper than six, and deep nesting is slow to scan."""
_ODD_VALUES = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""Errors that ruamel raises for a value that does not fit its tag, or for a mapping as a key."""
TOO_DEEP = f"nested too deeply; expected at most {DEPTH_MAX} lists and mappings within each other"


class Override(msgspec.Struct, frozen=True):
    """One `--set` or shortcut as the user wrote it, and the value that it gives to a field."""

    label: str
    path: KeyPath
    value: Any


class SpecTree(msgspec.Struct):
    """A spec before any check.

    `positions` has the line and column (from 1) of every key and list item in the file; `overrides` are in
    rising precedence, and already applied to `data`. `kept` says that the settings are those of an earlier
    launch, which yield to the options of this one.
    """

    source: str
    data: dict[str, Any]
    positions: dict[KeyPath, tuple[int, int]] = msgspec.field(default_factory=dict)
    overrides: list[Override] = msgspec.field(default_factory=list)
    kept: bool = False

    def override(self, override: Override) -> None:
        node: Any = self.data
        *above, last = override.path
        for depth, key in enumerate(above):
            node = _child(node, key)
            if not isinstance(node, (dict, list)):
                place = ".".join(map(str, override.path[: depth + 1]))
                raise SpecError(f"{override.label}: {place} is {node!r}, which has no {last!r} below it")
        if isinstance(node, dict):
            node[str(last)] = override.value
        elif (index := _index(last, node)) is not None:
            node[index] = override.value
        else:
            place = ".".join(map(str, above))
            raise SpecError(
                f"{override.label}: {place} is a list of {len(node)}; expected an index below that"
            )
        self.overrides.append(override)

    def describe(self, path: KeyPath, problem: str) -> str:
        """Return a problem after its place: ``file:line:col: path``, or ``--set KEY=VALUE``."""
        dotted = ".".join(map(str, path))
        override = self._override_of(path)
        if override is not None:
            same = tuple(map(str, override.path)) == tuple(map(str, path))
            return f"{override.label}: {problem}" if same else f"{override.label}: {dotted}: {problem}"
        line, column = self.position(path)
        place = f"{self.source}:{line}:{column}" if line else self.source
        return f"{place}: {dotted}: {problem}" if dotted else f"{place}: {problem}"

    def leave_out(self, problems: Iterable[Problem]) -> list[str]:
        """Remove the kept settings that have lost their meaning beside the options; return a line for each.

        Those are settings that `problems` name and no option gives: how to train, what to simulate, where
        tasks run, and servers for a strategy that has none. Everything else stays a mistake.
        """
        lost: dict[KeyPath, str] = {}
        for path, problem in problems if self.kept and self.overrides else ():
            yielding = path[:2] == ("cluster", "ps") or path[0] in _YIELDING
            setting = path[: _YIELDING.get(str(path[0]), 2)]
            if yielding and self._override_of(path) is None and _holds(self.data, setting):
                lost.setdefault(setting, problem)
        for *above, last in reversed(lost):  # of a list, from behind
            node: Any = self.data
            for key in above:
                node = node[key]
            del node[last]
        return [
            f"--resume: leaving out {'.'.join(map(str, setting))} of the run's settings: {problem}"
            for setting, problem in lost.items()
        ]

    def position(self, path: KeyPath) -> tuple[int, int]:
        """Return line and column of the innermost part of a path in the file; (0, 0) if there is none."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.positions:
                return self.positions[path[:length]]
        return 0, 0

    def _override_of(self, path: KeyPath) -> Override | None:
        names = tuple(map(str, path))
        for override in reversed(self.overrides):
            given = tuple(map(str, override.path))
            if names[: len(given)] == given or (given[: len(names)] == names and path not in self.positions):
                return override
        return None


_YIELDING = {"training": 2, "simulate": 3, "place": 2}
"""The sections whose kept settings yield to options, and the number of keys that lead to such a setting."""


def _holds(data: Any, path: KeyPath) -> bool:
    """Return whether `data` has a value at `path`."""
    for key in path:
        if not (
            key in data if isinstance(data, dict) else isinstance(data, list) and key in range(len(data))
        ):
            return False
        data = data[key]
    return True


def _child(node: Any, key: str | int) -> Any:
    if isinstance(node, list):
        return None if (index := _index(key, node)) is None else node[index]
    if is_none(node.get(key)):
        node[key] = {}
    return node[key]


def _index(key: str | int, items: list[Any]) -> int | None:
    text = str(key)
    return int(text) if text.isdecimal() and len(text) <= 9 and int(text) < len(items) else None


def read_tree(path: Path) -> SpecTree:
    text = _read_text(path)
    return parse_toml(text, str(path)) if path.suffix == ".toml" else parse_yaml_tree(text, str(path))


def _read_text(path: Path) -> str:
    try:
        with open(open_regular(path), "rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise SpecError(f"{path}: cannot read the spec: {error.strerror}") from None
    if len(data) > BYTES_MAX:
        raise SpecError(f"{path}: expected a spec of at most {BYTES_MAX // 1024} KiB, found a larger file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{path}: expected UTF-8 text, found byte 0x{data[error.start]:02x} at {error.start}"
        ) from None


def parse_toml(text: str, source: str) -> SpecTree:
    """Read TOML. Only mistakes of syntax have a line and column there."""
    try:
        return SpecTree(source, _plain(tomllib.loads(text), (), {}))
    except ValueError as error:  # also for a number of thousands of digits
        raise SpecError(f"{source}: not TOML: {error}") from None
    except RecursionError:
        raise SpecError(f"{source}: {TOO_DEEP}") from None


def parse_yaml_tree(text: str, source: str) -> SpecTree:
    positions: dict[KeyPath, tuple[int, int]] = {}
    data = {} if (plain := parse_yaml(text, source, positions)) is None else plain
    if not isinstance(data, dict):
        kind = "list" if isinstance(data, list) else "single value"
        raise SpecError(f"{source}:1:1: expected a mapping of keys such as `cluster:`, found a {kind}")
    return SpecTree(source, data, positions)


def parse_yaml(text: str, source: str, positions: dict[KeyPath, tuple[int, int]] | None = None) -> Any:
    """Read one YAML value as plain data, noting the positions of keys; aliases are refused."""
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import Composer
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.events import AliasEvent
    from ruamel.yaml.scanner import RoundTripScanner

    class ShallowScanner(RoundTripScanner):
        def fetch_more_tokens(self) -> Any:
            if self.flow_level > DEPTH_MAX:
                raise MarkedYAMLError(problem=TOO_DEEP, problem_mark=self.reader.get_mark())
            return super().fetch_more_tokens()

    class PlainComposer(Composer):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.parser.check_event(AliasEvent):
                mark = self.parser.peek_event().start_mark
                raise MarkedYAMLError(
                    problem="aliases (*name) are refused; write the value out", problem_mark=mark
                )
            return super().compose_node(parent, index)

    yaml = YAML()
    yaml.Scanner = ShallowScanner
    yaml.Composer = PlainComposer
    try:
        return _plain(yaml.load(text), (), {} if positions is None else positions)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise SpecError(f"{place}: not YAML that a spec can use: {_reason(error)}") from None
    except (YAMLError, *_ODD_VALUES) as error:
        said = (str(error) or type(error).__name__).splitlines()[0][:200]
        at: int | None = getattr(error, "position", None)  # of a character that YAML does not allow
        place = source if at is None else f"{source}:{text.count(chr(10), 0, at) + 1}"
        raise SpecError(f"{place}: not YAML that a spec can use: {said}") from None
    except RecursionError:
        raise SpecError(f"{source}: {TOO_DEEP}") from None


def _reason(error: Any) -> str:
    parts = (error.context, error.problem)
    text = ", ".join(" ".join(str(part).split()) for part in parts if part)
    return f"{text}; indent with spaces" if r"'\t'" in text else text


def _plain(node: Any, path: KeyPath, positions: dict[KeyPath, tuple[int, int]]) -> Any:
    if isinstance(node, dict):
        for key, place in _places(node):
            positions[*path, _key(key)] = place
        return {_key(key): _plain(value, (*path, _key(key)), positions) for key, value in node.items()}
    if isinstance(node, list):
        for index, place in _places(node):
            positions[*path, index] = place
        return [_plain(value, (*path, index), positions) for index, value in enumerate(node)]
    for kind in (bool, int, float):  # bool first: it is an int
        if isinstance(node, kind):
            if kind is int and abs(node) >= 1 << 63:
                raise ValueError(
                    f"{'.'.join(map(str, path))[:80]}: expected a number of 64 bits, found a longer one"
                )
            return kind(node)
    return None if node is None else _text(node)


def _places(node: Any) -> Iterator[tuple[Any, tuple[int, int]]]:
    is_mapping = isinstance(node, dict)
    if not hasattr(node, "lc"):
        return  # TOML has none
    place_of = node.lc.key if is_mapping else node.lc.item
    for key in node if is_mapping else range(len(node)):
        with contextlib.suppress(KeyError):  # merged from elsewhere
            if place := place_of(key):
                yield key, (place[0] + 1, place[1] + 1)


def _key(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return _text(key)


def _text(node: Any) -> str:
    text = str(getattr(node, "value", node))  # a scalar with an unknown tag has its text in `value`
    text.encode()  # an escape such as "\ud800" alone is no text: a ValueError here, not a puzzle later
    return text


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
    "local_steps": ("training", "local_steps"),
    "stages": ("training", "stages"),
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
    alone: bool = False,
    unfit: Callable[[RunSpec], Iterable[Problem]] = lambda spec: (),
    note: Callable[[str], None] = lambda text: None,
) -> RunSpec:
    """Read and check a spec; raise a `SpecError` with everything that is wrong, a line each.

    Args:
        source: the file, or what was read from one; None for the embedded default.
        sets: ``KEY=VALUE`` of each `--set`; the value is YAML, the key may hold task names
            (``simulate.slow.worker:2``).
        shortcuts: values by the names of `SHORTCUTS`; those that are None were not given.
        foreign: whether it is for `-- COMMAND`: the default has no evaluator, and less can be simulated.
        trains: whether a program is to train on its cluster, which is then what the strategy makes of it; a
            spec beside a TF_CONFIG may leave the cluster to that.
        alone: whether one process trains without a cluster, which takes from the spec what it can mean.
        unfit: yields what else is wrong with a spec that is right in itself.
        note: is called with a line for each setting that has no use.
    """
    default = SpecTree("the default spec", {"cluster": {}})
    tree = read_tree(source) if isinstance(source, Path) else source or default
    given = [_shortcut(name, value) for name, value in (shortcuts or {}).items() if value is not None]
    lines = _apply(tree, given, sets)
    if source is None:
        _add_default_cluster(tree.data, foreign)
    while True:
        spec, problems = resolve(tree.data, foreign, trains, alone)
        if spec is not None and not lines:
            problems = list(unfit(spec))
        if not (left_out := tree.leave_out(problems)):
            break
        for line in left_out:
            note(line)
    problems.sort(key=lambda problem: tree.position(problem[0]))
    lines += [tree.describe(path, text) for path, text in problems[:MISTAKES_MAX]]
    if lines or spec is None:
        raise SpecError(mistakes_text(lines, len(problems)))
    for path, text in spec.unused():
        note(tree.describe(path, text))
    return spec.resolved() if foreign or trains else spec


def sound_part(tree: SpecTree, kind: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Return the keys of a file of another kind that have the form of their type, and what is wrong with the
    others. Rules that come after need not see what has not its form.
    """
    data = {key: value for key, value in with_nulls(tree.data, kind).items() if value is not None}
    problems = list(mistakes(data, kind))
    broken = {path[0] for path, _ in problems}
    return {key: data[key] for key in data if key not in broken}, problems


def inner_spec(
    key: str, tree: SpecTree, folder: Path, foreign: bool
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the spec of launches that a file has below `key`, or names there, and a line for each mistake.

    Args:
        key: the key, whose value is the keys of a spec, or the name of a file in `folder`.
        tree: the file.
        folder: of the file.
        foreign: whether what is launched is a `-- COMMAND`.
    """
    prefix: KeyPath = (key,)
    given, source = tree.data.get(key), tree
    if isinstance(given, str):
        try:
            source = read_tree(folder / given)
        except SpecError as error:
            return None, [str(error)]
        given, prefix = source.data, ()
    if not isinstance(given, dict):
        return None, []
    _, problems = resolve(given, foreign, not foreign)
    ordered = sorted(below(prefix, problems), key=lambda problem: source.position(problem[0]))
    return given, [source.describe(*problem) for problem in ordered]


def mistakes_text(lines: list[str], problems: int = 0) -> str:
    """Return the lines of so many mistakes, or more, cut to what can be read."""
    shown = [line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}..." for line in lines[:MISTAKES_MAX]]
    more = max(problems, len(lines)) - len(shown)
    return "\n".join([*shown, f"and {more} more mistakes"] if more > 0 else shown)


def _add_default_cluster(data: dict[str, Any], foreign: bool) -> None:
    training = data.get("training")
    strategy = training.get("strategy") if isinstance(training, dict) else None
    stages = training.get("stages") if isinstance(training, dict) else None
    default = asdict(default_cluster(strategy if isinstance(strategy, str) else "", stages))
    if foreign:
        default["evaluator"] = 0
    if isinstance(data["cluster"], dict):
        data["cluster"] = {**default, **data["cluster"]}


def _shortcut(name: str, value: Any) -> Override:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        label = option if value else f"--no-{option[2:]}"
        return Override(label, SHORTCUTS[name], int(value) if name == "evaluator" else value)
    typed = ":".join(map(str, *value.items())) if isinstance(value, dict) else value
    return Override(f"{option} {typed if str(typed).isprintable() else repr(typed)}", SHORTCUTS[name], value)


def _apply(tree: SpecTree, shortcuts: list[Override], sets: Sequence[str]) -> list[str]:
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
