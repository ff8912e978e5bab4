"""Bugs drawn at random: one of a few operators at one place of a file. The same seed and the same code give
the same bugs.
"""

import ast
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

INCLUSIVE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
COMMUTES = {"max", "min", "np.maximum", "np.minimum", "np.add", "isinstance"}
"""Calls whose arguments are not swapped: it would change nothing, or only break the program."""
LEAVES = ast.Return | ast.Raise | ast.Continue | ast.Break


@dataclass(frozen=True)
class Drawn:
    """A bug at one node.

    Attributes:
        file: below ``runtime/dtrain``.
        operator: its name in `OPERATORS`.
        node: the node's number in the order of `ast.walk`.
        says: the bug in words.
    """

    file: str
    operator: str
    node: int
    says: str

    void = harmless = ""

    def place(self, sources: Mapping[str, str]) -> str:
        """Return its file."""
        return self.file

    def planted(self, source: str) -> str:
        """Return the file's text with the bug in it."""
        tree = ast.parse(source)
        node = list(ast.walk(tree))[self.node]
        if self.operator == "drop":
            _drop(tree, node)
        else:
            CHANGES[self.operator](node)
        return ast.unparse(ast.fix_missing_locations(tree))


def draw(sources: Mapping[str, str], seed: int, count: int) -> list[Drawn]:
    """Draw bugs, each at another place: first the operator, then one of all its places in all files."""
    chance = random.Random(seed)
    places: dict[str, list[Drawn]] = {operator: [] for operator in OPERATORS}
    for file, source in sorted(sources.items()):
        for drawn in _all_places(file, source):
            places[drawn.operator].append(drawn)
    drawn = []
    while len(drawn) < count and any(places.values()):
        operator = chance.choice([name for name in OPERATORS if places[name]])
        drawn.append(places[operator].pop(chance.randrange(len(places[operator]))))
    return drawn


def _all_places(file: str, source: str) -> Iterator[Drawn]:
    tree = ast.parse(source)
    numbers = {node: number for number, node in enumerate(ast.walk(tree))}
    for name, function in _functions(tree, ""):
        for node in _own_nodes(function):
            for operator, applies in OPERATORS.items():
                if applies(node):
                    text = ast.unparse(node).splitlines()[0]
                    yield Drawn(
                        file,
                        operator,
                        numbers[node],
                        f"{name}, line {getattr(node, 'lineno', 0)}: {operator} {text}",
                    )


def _functions(scope: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield what a function does: no annotations, no defaults, nothing of what an error says."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.FunctionDef):
            waiting += node.body
        elif not isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.Assert):
            waiting += [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.stmt | ast.expr | ast.comprehension)
            ]


def _is_dropped(node: ast.AST) -> bool:
    """Whether a statement can be left out without a name being unknown then."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return not node.orelse and isinstance(node.body[-1], LEAVES)
    return isinstance(node, ast.AugAssign | ast.Delete | ast.Raise | ast.Continue | ast.Break)


def _is_swapped(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or len(node.args) < 2 or ast.unparse(node.func) in COMMUTES:
        return False
    first, second = node.args[:2]
    return (
        not isinstance(first, ast.Starred)
        and not isinstance(second, ast.Starred)
        and ast.unparse(first) != ast.unparse(second)
    )


def _is_off_by_one(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in INCLUSIVE
    return isinstance(node, ast.Constant) and type(node.value) is int


OPERATORS: dict[str, Callable[[ast.AST], bool]] = {
    "negate": lambda node: isinstance(node, ast.If | ast.IfExp | ast.While),
    "drop": _is_dropped,
    "off by one": _is_off_by_one,
    "swap": _is_swapped,
}
"""By name: whether it applies to a node."""


def _negate(node: ast.AST) -> None:
    assert isinstance(node, ast.If | ast.IfExp | ast.While)
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _off_by_one(node: ast.AST) -> None:
    if isinstance(node, ast.Compare):
        node.ops = [INCLUSIVE[type(node.ops[0])]()]
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1


def _swap(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    node.args[:2] = [node.args[1], node.args[0]]


def _drop(tree: ast.AST, dropped: ast.AST) -> None:
    for parent in ast.walk(tree):
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and any(each is dropped for each in value):
                value[[each is dropped for each in value].index(True)] = ast.Pass()


CHANGES: dict[str, Callable[[ast.AST], None]] = {"negate": _negate, "off by one": _off_by_one, "swap": _swap}
