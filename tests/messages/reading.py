"""Which fields of messages a program reads, found in its text: a name stands for a message where an annotation,
`isinstance`, `case`, or an assignment says so.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain

Kinds = Mapping[str, Set[str]]
"""Of each name in the text, the classes of messages that it may stand for."""


def fields_read(texts: Iterable[str], classes: Set[str]) -> set[tuple[str, str]]:
    """Return (class, field) of every read of a field of one of the classes."""
    trees = [ast.parse(text) for text in texts]
    nodes = [list(ast.walk(tree)) for tree in trees]
    names: dict[str, set[str]] = {name: {name} for name in classes}
    for tree in trees:
        for node in tree.body:  # a name of its own for some of the classes
            if isinstance(node, ast.Assign) and (kinds := _classes(node.value, names)):
                names[_end(node.targets[0])] = kinds
    shared: dict[str, set[str]] = defaultdict(set)
    for node in chain(*nodes):
        if isinstance(node, ast.AnnAssign):
            shared[_end(node.target)] |= _classes(node.annotation, names)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            shared[node.name] |= _classes(node.returns, names)
    shared = {name: kinds for name, kinds in shared.items() if kinds}
    functions = [node for node in chain(*nodes) if isinstance(node, ast.FunctionDef)]
    return {read for function in functions for read in _read_in(list(ast.walk(function)), shared, names)}


def _read_in(nodes: Sequence[ast.AST], shared: Kinds, names: Kinds) -> Iterable[tuple[str, str]]:
    """Read one function; what its own parameters and tests say holds in this function."""
    known = _known(nodes, shared, names)
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield from ((kind, node.attr) for kind in known.get(_end(node.value), ()))
        elif isinstance(node, ast.MatchClass):
            yield from ((kind, field) for kind in names.get(_end(node.cls), ()) for field in node.kwd_attrs)


def _known(nodes: Sequence[ast.AST], shared: Kinds, names: Kinds) -> Kinds:
    known = defaultdict(set, {name: set(kinds) for name, kinds in shared.items()})
    for node in nodes:
        if isinstance(node, ast.arg) and node.annotation is not None:
            known[node.arg] |= _classes(node.annotation, names)
        elif isinstance(node, ast.Call) and _end(node.func) == "isinstance":
            known[_end(node.args[0])] |= _classes(node.args[1], names)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                known[_end(node.subject)] |= _classes(case.pattern, names)
        elif isinstance(node, ast.MatchAs) and node.name and node.pattern is not None:
            known[node.name] |= _classes(node.pattern, names)
    for _ in range(2):  # an assignment may stand on another one
        for target, value in chain(*map(_assigned, nodes)):
            made = names.get(_end(value), set()) if isinstance(value, ast.Call) else set()
            known[_end(target)] |= known.get(_end(value), set()) | made
    return known


def _assigned(node: ast.AST) -> Iterable[tuple[ast.AST, ast.AST]]:
    """Return (target, value) of what a node assigns; of what is iterated over, each of its parts."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            return list(zip(targets, values, strict=True))
        case ast.Assign(targets=targets, value=value):
            return [(target, value) for target in targets]
        case ast.NamedExpr(target=target, value=value):
            return [(target, value)]
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            parts = [part for part in ast.walk(target) if isinstance(part, ast.Name)]
            return [(part, value) for part in parts]
    return ()


def _classes(annotation: ast.AST, names: Kinds) -> set[str]:
    parts = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
    return {kind for part in parts for kind in names.get(part, ())}


def _end(node: ast.AST) -> str:
    """Return the last name of an expression: ``answer`` of ``self.links[0].answer``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Name(id="enumerate" | "list" | "sorted"), args=[inner, *_]):
            return _end(inner)
        case ast.Call(func=inner) | ast.Subscript(value=inner) | ast.Await(value=inner):
            return _end(inner)
        case ast.BoolOp(values=[*_, last]):
            return _end(last)
        case ast.IfExp(body=inner):
            return _end(inner)
    return ""
