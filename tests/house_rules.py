"""Rules of the house that the tree does not keep everywhere yet, and the budget of code lines.

    python tests/house_rules.py    # drop exceptions that were mended, and lower the budgets

Each rule finds what breaks it. What breaks it today stands in house_exceptions.txt, one line each: the rule,
the file and the name, and after two blanks and # the reason if it is to stay. The list only becomes shorter:
tests/test_house.py fails on a finding that is not listed and on a line that finds nothing any more.
"""

import ast
import collections
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("runtime/dtrain", "cli/dtrain_cli")
EXCEPTIONS = Path(__file__).with_name("house_exceptions.txt")
BUDGET = ROOT / "docs" / "design" / "budget.md"
MAX_FILE_LINES = 600
MIN_FILE_LINES = 100
"""A shorter file stands alone only where several files of its room, or another room, import it."""
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 8
MAX_SPARE = 0.03
"""How much a budget may be above what its files have."""
MAX_DESIGN_BYTES, MAX_PAGE_BYTES = 60_000, 14_000
"""How long the pages of docs/design may be: all together, and each."""
GIVEN_TWICE = {
    *("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD", "Hinge", "SquaredHinge"),
    *("BinaryCrossentropy", "CategoricalCrossentropy", "SparseCategoricalCrossentropy", "KLDivergence"),
    *(
        "CategoricalHinge",
        "CosineSimilarity",
        "Poisson",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanSquaredError",
    ),
    *("MeanSquaredLogarithmicError", "Activation"),
}
"""Public classes of two modules: optimizers and legacy ones, losses and metrics, activations and layers."""
FILLERS = {
    *("a", "an", "the", "all", "any", "each", "every", "one", "no", "not", "if", "so", "and", "or", "there"),
    *(
        "return",
        "returns",
        "be",
        "is",
        "are",
        "was",
        "were",
        "do",
        "does",
        "has",
        "have",
        "self",
        "it",
        "its",
    ),
    *(
        "as",
        "at",
        "by",
        "for",
        "from",
        "in",
        "of",
        "on",
        "to",
        "with",
        "that",
        "this",
        "these",
        "those",
        "they",
    ),
    *("them", "what", "whether", "which"),
}
"""Words that say nothing in a docstring."""
ROW = re.compile(r"^\| (.+?) \| (.*?) ?\| ([\d,]+) \|$", re.MULTILINE)
"""A row of the table in docs/design/budget.md: capability, paths, code lines."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Finding = tuple[str, str]
"""A file, as its path from the root of the repository, and the name of what breaks a rule in it."""


@dataclass(frozen=True)
class Tree:
    """Source files.

    Attributes:
        texts: of each file, by its path from the root of the repository; of Python and of data.
        public: the full names of public classes and functions, as `dtrain.losses.loss.Loss`.
    """

    texts: Mapping[str, str]
    public: frozenset[str] = field(default=frozenset())

    @cached_property
    def syntax(self) -> dict[str, ast.Module]:
        """The syntax of every Python file."""
        return {path: ast.parse(text) for path, text in self.texts.items() if path.endswith(".py")}

    @cached_property
    def nodes(self) -> dict[str, list[ast.AST]]:
        """Every node of the syntax of every Python file."""
        return {path: list(ast.walk(module)) for path, module in self.syntax.items()}

    @cached_property
    def definitions(self) -> list[tuple[str, str, Definition]]:
        """Every class and function: its file, its name within the file, and its syntax."""
        return [(path, *each) for path, module in self.syntax.items() for each in _defined(module, "")]

    @cached_property
    def classes(self) -> dict[str, list[tuple[str, ast.ClassDef]]]:
        """The classes of each name, with their files."""
        found = collections.defaultdict(list)
        for path, _, node in self.definitions:
            if isinstance(node, ast.ClassDef):
                found[node.name].append((path, node))
        return found

    @cached_property
    def functions(self) -> list[tuple[str, str, Function]]:
        """Every function and method, as `definitions` has them."""
        return [(path, name, node) for path, name, node in self.definitions if isinstance(node, Function)]

    def imported(self, path: str) -> list[str]:
        """Return every module that a file imports anywhere in it, or name of a module, by full name."""
        found = []
        for node in self.nodes[path]:
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found += [f"{node.module}.{alias.name}" for alias in node.names]
        return found

    def is_public(self, path: str, name: str) -> bool:
        """Return whether a definition is public, or is a method of a public class."""
        full = f"{module_of(path)}.{name}"
        return full in self.public or full.rpartition(".")[0] in self.public


def _defined(node: ast.AST, within: str) -> Iterator[tuple[str, Definition]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, Definition):
            yield within + each.name, each
        if not isinstance(each, ast.expr):
            yield from _defined(each, f"{within}{each.name}." if isinstance(each, Definition) else within)


def module_of(path: str) -> str:
    """Return the dotted name of a file; of a folder's `__init__`, the folder's."""
    return path.split("/", 1)[1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def tree() -> Tree:
    """Return the product's files as they are."""
    from dtrain.task.help_command import public

    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*"))]
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }
    named = [each for each in public().values() if hasattr(each, "__qualname__")]
    return Tree(texts, frozenset(f"{each.__module__}.{each.__qualname__}" for each in named))


# Rules


def long_file(tree: Tree) -> Iterator[Finding]:
    """A file has at most 600 lines."""
    for path in tree.syntax:
        if len(tree.texts[path].splitlines()) > MAX_FILE_LINES:
            yield path, "-"


def imported_once(tree: Tree) -> Iterator[Finding]:
    """A file of less than 100 lines that one other file of its room imports, and nothing else, joins that file."""
    files = {module_of(path): path for path in tree.syntax}
    importers = collections.defaultdict(set)
    for path in tree.syntax:
        for name in tree.imported(path):
            importers[files.get(name) or files.get(name.rpartition(".")[0])].add(path)
    for path in tree.syntax:
        others = importers[path] - {path}
        is_short = len(tree.texts[path].splitlines()) < MIN_FILE_LINES and not path.endswith("__init__.py")
        if is_short and len(others) == 1:
            (other,) = others
            if path.split("/")[2:-1][:1] == other.split("/")[2:-1][:1] and not other.endswith("__init__.py"):
                yield path, module_of(other)


def long_function(tree: Tree) -> Iterator[Finding]:
    """A function has at most 80 lines, its docstring included."""
    for path, name, node in tree.functions:
        if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES:
            yield path, name


def many_parameters(tree: Tree) -> Iterator[Finding]:
    """A function has at most 8 parameters beside self; those of public ones are Keras's and TensorFlow's."""
    for path, name, node in tree.functions:
        if len(_parameters(node)) > MAX_PARAMETERS and not tree.is_public(path, name):
            yield path, name


def _parameters(function: Function) -> list[ast.arg]:
    given = function.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [each for each in every if each is not None and each.arg not in ("self", "cls")]


def name_of_two_classes(tree: Tree) -> Iterator[Finding]:
    """No two classes have one name, but for public ones that Keras gives twice."""
    for name, found in tree.classes.items():
        if len(found) > 1 and name not in GIVEN_TWICE:
            yield from ((path, name) for path, _ in found)


def one_implementation(tree: Tree) -> Iterator[Finding]:
    """A Protocol has two classes that have all its members; functions and null objects are no such classes."""
    own = {id(node): _own_members(node) for found in tree.classes.values() for _, node in found}

    def members(node: ast.ClassDef) -> set[str]:
        of_bases = [
            base for name in _bases(node) for _, base in tree.classes.get(name, ()) if base is not node
        ]
        return own[id(node)].union(*(members(base) for base in of_bases if node.name not in _bases(base)))

    classes = [(path, node, _bases(node)) for found in tree.classes.values() for path, node in found]
    have = [
        members(node) for _, node, bases in classes if "Protocol" not in bases and not _is_null_object(node)
    ]
    for path, node, bases in classes:
        needed = members(node) - set(dir(object))
        if "Protocol" in bases and needed != {"__call__"} and sum(needed <= each for each in have) < 2:
            yield path, node.name


def _bases(node: ast.ClassDef) -> list[str]:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [
        base.attr if isinstance(base, ast.Attribute) else base.id for base in bases if hasattr(base, "ctx")
    ]


def _own_members(node: ast.ClassDef) -> set[str]:
    found = {each.name for each in node.body if isinstance(each, Function)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute | ast.Name) and isinstance(each.ctx, ast.Store):
            found.add(each.attr if isinstance(each, ast.Attribute) else each.id)
    return found


def _is_null_object(node: ast.ClassDef) -> bool:
    """Return whether every method does nothing, or returns a constant."""
    methods = [each for each in node.body if isinstance(each, Function)]
    return bool(methods) and all(
        isinstance(line, ast.Pass)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        or (isinstance(line, ast.Return) and not any(map(_is_work, ast.walk(line))))
        for method in methods
        for line in method.body
    )


def _is_work(node: ast.AST) -> bool:
    return isinstance(node, ast.Call | ast.Attribute | ast.BinOp | ast.Compare | ast.Subscript)


def docstring_repeats_signature(tree: Tree) -> Iterator[Finding]:
    """A docstring says what its function's name, parameters and types do not, or is not there.

    Public ones are not measured by their words, for a page has a line of each; "See `X.y`." says nothing anywhere.
    """
    for path, name, node in tree.functions:
        doc = ast.get_docstring(node) or ""
        types = [node.returns, *(each.annotation for each in _parameters(node))]
        known = _stems(" ".join([name, *(each.arg for each in _parameters(node))]))
        known |= _stems(" ".join(ast.unparse(each) for each in types if each is not None))
        said = _stems(doc) - ({"begin"} if node.name == "__init__" else set())
        repeats = "\n\n" not in doc and len(said - known) * 4 <= len(said) and not tree.is_public(path, name)
        if doc and (repeats or re.fullmatch(r"See `[\w.]+`\.", doc)):
            yield path, name


def _stems(text: str) -> set[str]:
    """Return the first letters of every word that says something; a name is several words."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()
    return {word[:5] for word in re.findall(r"[a-z]+", apart) if word not in FILLERS}


RULES: dict[str, Callable[[Tree], Iterator[Finding]]] = {
    "long-file": long_file,
    "imported-once": imported_once,
    "long-function": long_function,
    "many-parameters": many_parameters,
    "name-of-two-classes": name_of_two_classes,
    "one-implementation": one_implementation,
    "docstring-repeats-signature": docstring_repeats_signature,
}


def findings(tree: Tree) -> set[str]:
    """Return what breaks a rule, as lines of the list."""
    return {f"{rule} {' '.join(found)}" for rule, find in RULES.items() for found in find(tree)}


def listed() -> dict[str, str]:
    """Return the lines of the list, each with its reason."""
    lines = [line.partition("  # ") for line in EXCEPTIONS.read_text().splitlines()]
    return {found: mark + reason for found, mark, reason in lines}


# The budget


def code_lines(tree: Tree, path: str) -> int:
    """Count the lines of a file that are neither blank, nor comments, nor part of a docstring.

    Data of the package count as code. A string with a program of several lines counts as the program does,
    however it is written.
    """
    text = tree.texts[path]
    if path not in tree.syntax:
        return sum(bool(line.strip()) and not line.startswith("#") for line in text.splitlines())
    documented: set[int] = set()
    hidden = 0
    for node in tree.nodes[path]:
        if isinstance(node, ast.Expr) and _is_text(node.value):
            documented |= set(range(node.lineno, node.end_lineno + 1))
        elif _is_text(node) and node.lineno not in documented:
            hidden += max(0, _lines_of_program(node.value) - (node.end_lineno - node.lineno + 1))
    return hidden + sum(
        number not in documented and bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(text.split("\n"), 1)
    )


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _lines_of_program(text: str) -> int:
    """Return how many lines of Python a text has; 0: it is no program."""
    if text.count("\n") < 2:
        return 0
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return 0
    return text.count("\n") if any(not isinstance(each, ast.Expr) for each in body) else 0


def measured(tree: Tree, paths: Mapping[str, str]) -> dict[str, int]:
    """Count the code lines of each capability, and of all.

    Args:
        tree: the files.
        paths: the capability of each path, a folder's or a file's; of those that a file is in, the longest counts.

    Raises:
        ValueError: a file is in none, or a path has no file.
    """
    found = dict.fromkeys(paths.values(), 0)
    empty = set(paths)
    for file in tree.texts:
        within = [path for path in paths if f"{file}/".startswith(f"{path}/")]
        if not within:
            raise ValueError(f"docs/design/budget.md: {file} belongs to no capability")
        longest = max(within, key=len)
        empty.discard(longest)
        found[paths[longest]] += code_lines(tree, file)
    if empty:
        raise ValueError(f"docs/design/budget.md: no file is in {', '.join(sorted(empty))}")
    return {**found, "all": sum(found.values())}


def budgets(page: str) -> tuple[dict[str, int], dict[str, str]]:
    """Return the budget of each capability, and the capability of each path, as the page's table has them."""
    rows = ROW.findall(page)
    paths = {_whole(path): name for name, cell, _ in rows for path in re.findall(r"`([\w./]+)`", cell)}
    return {name: int(number.replace(",", "")) for name, _, number in rows}, paths


def _whole(path: str) -> str:
    """Return the path from the root of the repository of one that stands in the table."""
    first, _, rest = path.partition("/")
    package = {"runtime": PACKAGES[0], "cli": PACKAGES[1]}.get(first)
    return f"{PACKAGES[0]}/{path}" if package is None else f"{package}/{rest}".rstrip("/")


def lowered(page: str, found: Mapping[str, int]) -> str:
    """Return the page with budgets that are at most 3 % above what was found; none becomes
    higher. That of all is set by hand."""

    def row(match: re.Match[str]) -> str:
        most = int(found[match[1]] * (1 + MAX_SPARE))
        keeps = match[1] == "all" or int(match[3].replace(",", "")) <= most
        return match[0] if keeps else match[0].replace(f"| {match[3]} |", f"| {most:,} |")

    return ROW.sub(row, page)


def main() -> None:
    """Drop lines of exceptions that were mended, and lower the budgets; add nothing to either."""
    now = findings(tree())
    kept = [found + reason for found, reason in listed().items() if found in now]
    EXCEPTIONS.write_text("".join(f"{line}\n" for line in kept))
    page = BUDGET.read_text()
    BUDGET.write_text(lowered(page, measured(tree(), budgets(page)[1])))


if __name__ == "__main__":
    main()
