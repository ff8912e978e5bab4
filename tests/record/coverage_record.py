"""A record of what the tests reach: statements and branches by file, folder and function, as text; and what one
record has reached and a later one has not, where files were moved, joined and cut meanwhile.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

WHOLE_MODULE = "(module)"
"""The name of what stands in no function."""


@dataclass
class Counted:
    """Statements and branches, and how many of each the tests do not reach."""

    statements: int = 0
    branches: int = 0
    statements_missed: int = 0
    branches_missed: int = 0

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(*(mine + its for mine, its in zip(self.row(), other.row(), strict=True)))

    def row(self) -> tuple[int, int, int, int]:
        """Return the four numbers in the order of a record."""
        return self.statements, self.branches, self.statements_missed, self.branches_missed

    def percent(self) -> float:
        """Return how much of statements and branches together is reached."""
        every = self.statements + self.branches
        return 100.0 * (1 - (self.statements_missed + self.branches_missed) / every) if every else 100.0


@dataclass
class Function:
    """What the tests reach of one function.

    Attributes:
        file: from the tree's root.
        name: with its classes, such as ``Class.method``.
        missed: the texts of statements, and of branches as ``text -> text``, that are not reached.
    """

    file: str
    name: str
    counted: Counted
    missed: list[str] = field(default_factory=list)

    def is_reached(self) -> bool:
        """Return whether any statement of it ran."""
        return self.counted.statements_missed < self.counted.statements


def statements_of(source: str) -> dict[int, str]:
    """Return the text of each statement by its first line, in one line however it is laid out; of one with a body
    what stands before that.
    """
    found: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            found.setdefault(node.lineno, _head(node))
        elif isinstance(node, ast.match_case):
            found.setdefault(node.pattern.lineno, f"case {ast.unparse(node.pattern)}")
    return found


def _head(node: ast.stmt | ast.ExceptHandler) -> str:
    match node:
        case ast.If() | ast.While():
            return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
        case ast.For():
            return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        case ast.With():
            return f"with {', '.join(map(ast.unparse, node.items))}"
        case ast.Match():
            return f"match {ast.unparse(node.subject)}"
        case ast.ExceptHandler():
            return f"except {ast.unparse(node.type) if node.type else ''}".rstrip()
        case ast.FunctionDef() | ast.ClassDef():
            return f"{'def' if isinstance(node, ast.FunctionDef) else 'class'} {node.name}"
        case ast.Try():
            return "try"
    return " ".join(ast.unparse(node).split())


def text_of(functions: Sequence[Function], header: Iterable[str]) -> str:
    """Return the record: first the folders, each with all below it, then files, then functions with what is missed."""
    files: dict[str, Counted] = defaultdict(Counted)
    for function in functions:
        files[function.file] += function.counted
    folders: dict[str, Counted] = defaultdict(Counted)
    for file, counted in files.items():
        for folder in PurePosixPath(file).parents:
            folders[str(folder)] += counted
    lines = [f"# {line}" for line in header]
    lines += ["# kind percent statements branches statements-missed branches-missed name"]
    lines += [_row("folder", counted, name) for name, counted in sorted(folders.items())]
    lines += [_row("file", counted, name) for name, counted in sorted(files.items())]
    for function in sorted(functions, key=lambda each: (each.file, each.name)):
        lines.append(_row("function", function.counted, f"{function.file} {function.name}"))
        lines += [f"    missed {text}" for text in function.missed]
    return "\n".join(lines) + "\n"


def _row(kind: str, counted: Counted, name: str) -> str:
    numbers = " ".join(f"{number:6}" for number in counted.row())
    return f"{kind:8} {counted.percent():6.2f} {numbers}  {name}"


def read(text: str) -> list[Function]:
    """Return the functions of a record."""
    functions: list[Function] = []
    for line in text.splitlines():
        if line.startswith("    missed "):
            functions[-1].missed.append(line.removeprefix("    missed "))
        elif line.startswith("function "):
            _, _, *numbers, file, name = line.split()
            functions.append(Function(file, name, Counted(*map(int, numbers))))
    return functions


def pairs(before: Sequence[Function], now: Sequence[Function]) -> list[tuple[Function, Function | None]]:
    """Pair each function with what it has become, or None.

    A function is looked for in its file first, then in the folder, then in a file of the same name, then anywhere;
    of several, the one of the most similar size. What stands in no function belongs to its file alone.
    """
    keys = (
        lambda each: (each.file, each.name),
        lambda each: (str(PurePosixPath(each.file).parent), each.name),
        lambda each: (PurePosixPath(each.file).name, each.name),
        lambda each: each.name,
    )
    found: dict[int, Function] = {}
    left_before, left_now = list(before), list(now)
    for key in keys:
        places: dict[object, list[Function]] = defaultdict(list)
        for function in left_now:
            places[key(function)].append(function)
        still = []
        for function in left_before:
            there = places[key(function)]
            if not there or (key is not keys[0] and function.name == WHOLE_MODULE):
                still.append(function)
                continue
            size = function.counted.statements
            best = min(there, key=lambda each: abs(each.counted.statements - size))
            there.remove(best)
            found[id(function)] = best
        left_before, left_now = still, [each for rest in places.values() for each in rest]
    return [(function, found.get(id(function))) for function in before]


def lost(before: Sequence[Function], now: Sequence[Function]) -> tuple[list[str], list[str]]:
    """Compare two records.

    Returns:
        what was reached and is not any more: functions first, then single statements and branches; and what is to be
        known besides: functions that are gone, new ones that no test reaches, and the sums of folders.
    """
    functions, pieces, gone = [], [], []
    paired = pairs(before, now)
    for function, later in paired:
        if later is None:
            if function.name != WHOLE_MODULE:
                gone.append(f"gone: {function.name} of {function.file}")
            continue
        where = f"{later.name} of {later.file}"
        if later.file != function.file:
            where += f" (was in {function.file})"
        if function.is_reached() and not later.is_reached():
            functions.append(f"no longer reached: {where}")
            continue
        more = Counter(later.missed) - Counter(function.missed)
        pieces += [f"now missed in {where}: {text}" for text in more.elements()]
    known = {id(later) for _, later in paired}
    new = [
        f"new and not reached: {each.name} of {each.file}"
        for each in now
        if id(each) not in known and each.counted.statements and not each.is_reached()
    ]
    return functions + pieces, gone + new + _sums(before, now)


def _sums(before: Sequence[Function], now: Sequence[Function]) -> list[str]:
    sums = [_by_folder(before), _by_folder(now)]
    return [
        f"{folder}: {sums[0][folder].percent():.2f} % -> {sums[1][folder].percent():.2f} %, statements and branches missed "
        f"{_missed(sums[0][folder])} -> {_missed(sums[1][folder])}"
        for folder in sorted(sums[0].keys() & sums[1].keys())
    ]


def _by_folder(functions: Iterable[Function]) -> Mapping[str, Counted]:
    folders: dict[str, Counted] = defaultdict(Counted)
    for function in functions:
        for folder in PurePosixPath(function.file).parents:
            folders[str(folder)] += function.counted
    return folders


def _missed(counted: Counted) -> int:
    return counted.statements_missed + counted.branches_missed
