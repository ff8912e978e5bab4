"""The strategy that a program constructs, as its syntax tells: nothing of the program is executed."""

import ast
import warnings
from collections.abc import Mapping
from pathlib import Path

_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.TryStar, ast.Match)
CONSTRUCTORS = {
    "MirroredStrategy": "mirrored",
    "CentralStorageStrategy": "central_storage",
    "MultiWorkerMirroredStrategy": "multi_worker_mirrored",
    "ParameterServerStrategy": "parameter_server",
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
    branches = (node for node in nodes if isinstance(node, _BRANCHES))
    unsure = {id(inner) for branch in branches if not _is_main(branch) for inner in ast.walk(branch)}
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


def _is_main(branch: ast.AST) -> bool:
    return isinstance(branch, ast.If) and ast.unparse(branch.test).startswith("__name__ == ")


def _dotted(node: ast.AST, names: Mapping[str, str]) -> str:
    """Return the dotted path that an expression of names and dots refers to; "" for other expressions."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""
