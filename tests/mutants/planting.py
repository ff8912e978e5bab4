"""Planting a bug in the text of a module: a piece of the syntax tree of one function is replaced by
another.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

WHOLE_BODY = "*"


class DoesNotFitError(Exception):
    """The code has no such function any more, or the function no such piece."""


@dataclass(frozen=True)
class Change:
    """What is replaced, and by what.

    Attributes:
        function: in which it stands, such as ``Class.method``; what is nested in a function belongs to it.
        old: an expression, statements, or ``name=value`` for an argument of a call; `WHOLE_BODY` for all of
            the function.
        new: what comes in its place; nothing: it is dropped.
        every: replace all that are equal; otherwise there must be one alone.
    """

    function: str
    old: str
    new: str = ""
    every: bool = False


def plant(source: str, change: Change) -> str:
    """Return a module's text with a bug in it; comments are lost.

    Raises:
        DoesNotFitError: the module has no such function, or not exactly one such piece in it.
    """
    tree = ast.parse(source)
    function = _function(tree, change.function)
    if change.old == WHOLE_BODY:
        function.body = _documented(function.body) + (ast.parse(change.new).body or [ast.Pass()])
        return ast.unparse(ast.fix_missing_locations(tree))
    found = list(_places(function, change))
    if not found:
        raise DoesNotFitError(f"{change.function} does not contain: {change.old}")
    if len(found) > 1 and not change.every:
        raise DoesNotFitError(f"{change.function} contains {len(found)} times: {change.old}")
    for place in found:
        place.put()
    return ast.unparse(ast.fix_missing_locations(tree))


def place_of(file: str, changes: Sequence[Change], sources: Mapping[str, str]) -> str:
    """Return the file in which the functions of some changes are: `file`, or else the only other one that they fit.

    Raises:
        DoesNotFitError: no other file has them, or several do.
    """
    names = sorted({change.function for change in changes})
    if file in sources and all(_has_function(sources[file], name) for name in names):
        return file
    words = {name.rpartition(".")[2] for name in names}
    found = [
        other
        for other, text in sources.items()
        if all(word in text for word in words) and _fits(text, changes)
    ]
    if len(found) != 1:
        others = f"{len(found)} files have them: {', '.join(found)}" if found else "they fit no other file"
        raise DoesNotFitError(f"{file} has no {', '.join(names)}, and {others}")
    return found[0]


def _has_function(source: str, name: str) -> bool:
    try:
        _function(ast.parse(source), name)
    except DoesNotFitError:
        return False
    return True


def _fits(source: str, changes: Sequence[Change]) -> bool:
    try:
        for change in changes:
            source = plant(source, change)
    except DoesNotFitError:
        return False
    return True


@dataclass
class _Place:
    """Where a node, or a run of statements, hangs: a field of its parent, and the position in it if that is a
    list.
    """

    parent: ast.AST
    field: str
    position: int | None
    length: int
    new: list[ast.AST]

    def put(self) -> None:
        """Put the new piece there."""
        if self.position is None:
            setattr(self.parent, self.field, self.new[0])
            return
        pieces = getattr(self.parent, self.field)
        pieces[self.position : self.position + self.length] = self.new


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | ast.ClassDef:
    scope: ast.AST = tree
    for part in name.split("."):
        inner = [node for node in ast.iter_child_nodes(scope) if getattr(node, "name", None) == part]
        if not inner:
            raise DoesNotFitError(f"there is no {name}")
        scope = inner[-1]
    assert isinstance(scope, ast.FunctionDef | ast.ClassDef)
    return scope


def _documented(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    return [first] if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else []


def _places(function: ast.AST, change: Change) -> Iterator[_Place]:
    """Yield where the old piece stands, the last in the text first, so that putting one moves no other."""
    old, new = ast.parse(change.old).body, ast.parse(change.new).body
    if len(old) == 1 and isinstance(old[0], ast.Expr) and len(new) == 1 and isinstance(new[0], ast.Expr):
        yield from _expressions(function, ast.unparse(old[0].value), new[0].value)
        return
    wanted = [ast.unparse(statement) for statement in old]
    runs = list(_statements(function, wanted, list(new) or [ast.Pass()]))
    yield from reversed(runs or list(_arguments(function, change.old.strip(), new)))


def _expressions(function: ast.AST, old: str, new: ast.AST) -> Iterator[_Place]:
    for parent in ast.walk(function):
        for field, value in ast.iter_fields(parent):
            for position, node in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(node, ast.expr) and ast.unparse(node) == old:
                    yield _Place(parent, field, position if isinstance(value, list) else None, 1, [new])


def _statements(function: ast.AST, wanted: list[str], new: list[ast.AST]) -> Iterator[_Place]:
    for parent in ast.walk(function):
        for field, value in ast.iter_fields(parent):
            if not (isinstance(value, list) and value and isinstance(value[0], ast.stmt)):
                continue
            texts = [ast.unparse(statement) for statement in value]
            for position in range(len(texts) - len(wanted) + 1):
                if texts[position : position + len(wanted)] == wanted:
                    yield _Place(parent, field, position, len(wanted), new)


def _arguments(function: ast.AST, old: str, new: list[ast.stmt]) -> Iterator[_Place]:
    for call in ast.walk(function):
        for position, argument in enumerate(call.keywords if isinstance(call, ast.Call) else []):
            if f"{argument.arg}={ast.unparse(argument.value)}" == old.replace(" = ", "="):
                value = new[0].value if new and isinstance(new[0], ast.Expr) else None
                put: list[ast.AST] = [ast.keyword(argument.arg, value)] if value is not None else []
                yield _Place(call, "keywords", position, 1, put)
