"""The rules of the house, as a test: floors, bans, sizes. docs/design/architecture.md draws what is enforced
here.
"""

import ast
import functools
import gc
import graphlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import EnumType
from pathlib import Path

import house_rules
import pytest

from dtrain.cluster import Role
from dtrain.config import choices

ROOT = Path(__file__).parents[1]
RUNTIME = ROOT / "runtime" / "dtrain"
CLI = ROOT / "cli" / "dtrain_cli"
FILES = sorted([*RUNTIME.rglob("*.py"), *CLI.rglob("*.py")])
KNOWN = set(FILES)

# From the lowest floor to the highest. A file imports only from its own room and from rooms that stand before
# it here. The room of a module is the longest of these names that it begins with.
RUNTIME_FLOORS = [
    "errors",
    "absent_names",
    "types",
    "formats",
    "variables",
    "state",
    "cluster",
    "config",
    "messages",
    "process",
    "runs",
    "studies",
    "data",
    "learning.core",
    "learning.functions",
    "learning.layers",
    "learning.losses",
    "learning.optimizers",
    "learning.metrics",
    "learning",
    "learning.graphs",
    "exchange",
    "protocol",
    "steps",
    "wire",
    "parameters",
    "collectives",
    "control",
    "checkpoints",
    "roles",
    "roles.worker",
    "roles.chief",
    "roles.evaluator",
    "roles.parameter_server",
    "roles.collective",
    "strategies",
    "distribute",
    "callbacks",
    "saving",
    "training",
    "compat",
    "tuning",
    "integrations",
    "task",
]
CLI_FLOORS = [
    "shipped",
    "spec",
    "certificates",
    "placement",
    "code",
    "plan",
    "targets",
    "runs",
    "console",
    "queue",
    "launch.tasks",
    "launch.policies",
    "agent",
    "fleet",
    "survey",
    "launch",
    "study",
    "stories",
    "commands",
    "main",
]
# The launcher sees the lowest rooms of the runtime, and none that computes.
SEEN_BY_CLI = {"errors", "formats", "cluster", "config", "messages", "process", "runs", "studies"}
# Commands whose work is the runtime's import it as they run, within a function: `dtrain help` needs no numpy.
RUN_BY_CLI = ("dtrain.task.data_command", "dtrain.task.model_command")

# What has no clock, chance, socket or thread: the rules, the numerics, and every machine.
PURE = ("state", "exchange", "protocol", "steps", "learning", "parameters", "collectives", "control")
PURE_FILES = [
    path
    for path in FILES
    if path in (CLI / "queue" / "rules.py", CLI / "study" / "packing.py", RUNTIME / "studies" / "trials.py")
    or (
        path.is_relative_to(RUNTIME)
        and (path.name == "machine.py" or path.relative_to(RUNTIME).parts[0] in PURE)
    )
]
BANNED_IN_PURE = {"time", "random", "socket", "threading", "logging", "select", "subprocess"}
# What may take the elements of a set in any order, and what makes one.
IN_ANY_ORDER = {"sorted", "min", "max", "any", "all", "sum", "len", "set", "frozenset"}
SETS = {"set", "frozenset"}
# What sees only the strategies' interface: it may not know who carries a strategy out.
ABOVE_THE_INTERFACE = ("training", "saving", "callbacks", "compat", "integrations", "distribute")
# The rooms that compare with words: settings are compared in config alone, and these have Keras's arguments,
# such as verbose="auto" and reduction="none".
COMPARE_WORDS = ("config", "learning", "callbacks", "training")
# A role's name is no word of a setting alone.
WORDS_OF_SETTINGS = {
    *(word for kind in vars(choices).values() if isinstance(kind, EnumType) for word in kind),
    *("single", "parameter_server", "sync", "async"),
} - set(Role)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
# A docstring begins with the verb or the noun that it is about; D401 of ruff holds functions to the imperative.
BANNED_FIRST_WORDS = {
    *("who", "whoever", "whose", "whom", "nobody", "somebody", "everybody", "anybody"),
    *("what", "whatever", "it", "its"),
}
# Code and tests cite a page by its path, and a rule by its name and anchor (CONTRIBUTING.md).
CITED_PAGE = re.compile(r"\bdocs/[\w/]+\.md(?:#[\w-]+)?")
CITED_BY_NUMBER = re.compile(r"\b[Rr]ules? \d|\bCONTRACT\b|\bFindings?, |\b[PK]-[A-Z]\d+\b")
CITING = sorted(
    path
    for folder in ("runtime", "cli", "tests", "benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__)
)

MAX_CAPABILITIES = 53


def for_each(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make one test of a rule for files. As thousands of tests they would take longer to collect than to run."""

    def over_all(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            found = []
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    found.append(f"{path.relative_to(ROOT)}: {error}")
            assert not found, "\n".join(found)

        return test

    return over_all


def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file's syntax."""
    return house_rules.tree().nodes[str(path.relative_to(ROOT))]


@pytest.fixture(scope="module", autouse=True)
def parsed() -> Iterator[None]:
    """Parse every file once, and leave what that makes out of searches for garbage: they would take twice as long."""
    gc.disable()
    nodes(FILES[0])
    gc.freeze()
    gc.enable()
    yield
    house_rules.tree.cache_clear()


@functools.cache
def imports(path: Path) -> list[str]:
    """Every module that a file imports anywhere in it, by full name."""
    return house_rules.tree().imported(str(path.relative_to(ROOT)))


def room(module: str, package: str, floors: list[str]) -> str | None:
    """The room of a module of `package`; None for others, and for the face itself."""
    if not module.startswith(f"{package}."):
        return None
    inside = module.removeprefix(f"{package}.")
    return max((name for name in floors if f"{inside}.".startswith(f"{name}.")), key=len, default=None)


def inside(path: Path, package: Path) -> str:
    """The dotted name of a file within its package; of a folder's `__init__`, the folder's."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@for_each(FILES)
def test_a_file_imports_only_from_below(path):
    of_runtime = path.is_relative_to(RUNTIME)
    package, top, floors = (
        (RUNTIME, "dtrain", RUNTIME_FLOORS) if of_runtime else (CLI, "dtrain_cli", CLI_FLOORS)
    )
    if path == package / "__init__.py":
        return
    own = room(f"{top}.{inside(path, package)}", top, floors)
    assert own is not None, "this room has no floor"
    for module in imports(path):
        target = room(module, top, floors)
        if target is not None and target != own:
            assert floors.index(target) < floors.index(own), f"{own} imports {module}, which stands above it"
        if of_runtime:
            assert not module.startswith("dtrain_cli"), f"the runtime must not know the launcher: {module}"
        elif (seen := room(module, "dtrain", RUNTIME_FLOORS)) is not None:
            as_it_runs = module.startswith(RUN_BY_CLI) and f"\nfrom {module}" not in path.read_text()
            assert seen in SEEN_BY_CLI or as_it_runs, f"cli/ may not see {module}"


def file_of(module: str) -> Path | None:
    """The file that an import of `module`, or of a name in it, reads; None for others' packages."""
    package, *parts = module.split(".")
    top = {"dtrain": RUNTIME, "dtrain_cli": CLI}.get(package)
    if top is None:
        return None
    places = [top.joinpath(*parts[: len(parts) - less]) for less in (0, 1)]
    named = (each for place in places for each in (place.with_suffix(".py"), place / "__init__.py"))
    return next((each for each in named if each in KNOWN), None)


def test_no_files_import_each_other_in_a_circle():
    faces = {RUNTIME / "__init__.py", CLI / "__init__.py"}
    read = {path: {file_of(module) for module in imports(path)} - {None, path, *faces} for path in FILES}
    try:
        graphlib.TopologicalSorter(read).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(str(path.relative_to(ROOT)) for path in reversed(error.args[1])))


def test_every_floor_has_a_room():
    for package, floors in ((RUNTIME, RUNTIME_FLOORS), (CLI, CLI_FLOORS)):
        names = {inside(path, package) for path in FILES if path.is_relative_to(package)}
        assert set(floors) <= {name.split(".", depth)[0] for name in names for depth in (1,)} | names


def test_what_breaks_a_rule_of_house_rules_is_listed_and_what_is_listed_breaks_it():
    found, listed = house_rules.findings(house_rules.tree()), house_rules.listed()
    new = sorted(found - listed.keys())
    assert not new, "mend these; tests/house_exceptions.txt takes no new lines:\n" + "\n".join(new)
    mended = sorted(listed.keys() - found)
    assert not mended, "mended: run python tests/house_rules.py, which removes:\n" + "\n".join(mended)
    assert list(listed) == sorted(listed), "tests/house_exceptions.txt is not sorted"


def test_no_capability_has_more_code_than_its_budget_nor_a_budget_that_it_does_not_need():
    page = house_rules.BUDGET.read_text()
    budget, paths = house_rules.budgets(page)
    found = house_rules.measured(house_rules.tree(), paths)
    assert len(budget) <= MAX_CAPABILITIES
    assert "all" in budget
    over = {name: f"{found[name]} of {budget[name]}" for name in budget if found[name] > budget[name]}
    assert not over, "more code lines than docs/design/budget.md allows"
    assert house_rules.lowered(page, found) == page, "run python tests/house_rules.py, which lowers budgets"


def test_the_pages_of_design_can_be_held_in_the_head():
    sizes = {page.name: len(page.read_bytes()) for page in house_rules.BUDGET.parent.rglob("*.md")}
    assert sum(sizes.values()) <= house_rules.MAX_DESIGN_BYTES, sizes
    assert max(sizes.values()) <= house_rules.MAX_PAGE_BYTES, sizes


@for_each(FILES)
def test_grpc_is_imported_in_wire_alone(path):
    if not path.is_relative_to(RUNTIME / "wire"):
        assert not [module for module in imports(path) if module.split(".")[0] == "grpc"]


@for_each(PURE_FILES)
def test_rules_and_machines_have_no_clock_chance_socket_or_thread(path):
    assert not {module.split(".")[0] for module in imports(path)} & BANNED_IN_PURE


def is_set(node: ast.AST) -> bool:
    """Whether an expression makes a set, as far as its form shows that."""
    if isinstance(node, ast.BinOp):
        united = isinstance(node.op, ast.BitOr) and any(map(is_keys_or_set, (node.left, node.right)))
        return united or isinstance(node.op, ast.Sub | ast.BitAnd | ast.BitXor)
    made = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SETS
    return made or isinstance(node, ast.Set | ast.SetComp)


def is_keys_or_set(node: ast.AST) -> bool:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"
    return called or is_set(node)


@for_each(PURE_FILES)
def test_rules_and_machines_go_through_no_set_in_the_order_of_its_hashes(path):
    free, walked = set(), []
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            free |= set(node.args) if node.func.id in IN_ANY_ORDER else set()
            walked += node.args if node.func.id in ("list", "tuple") else []
        elif isinstance(node, ast.For | ast.Starred):
            walked.append(node.iter if isinstance(node, ast.For) else node.value)
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and node not in free:
            walked += [each.iter for each in node.generators]
    found = [f"line {each.lineno}: {ast.unparse(each)}" for each in walked if is_set(each)]
    assert not found, "; ".join(found)


@for_each(
    [
        path
        for path in FILES
        if path.is_relative_to(RUNTIME)
        and (
            path.relative_to(RUNTIME).parts[0].removesuffix(".py") in ABOVE_THE_INTERFACE
            or path == RUNTIME / "strategies" / "interface.py"
        )
    ]
)
def test_the_strategies_interface_and_what_stands_above_it_know_no_role(path):
    assert not [module for module in imports(path) if module.startswith("dtrain.roles")]


@for_each(FILES)
def test_names_and_excepts(path):
    assert path.stem not in BANNED_NAMES
    for node in nodes(path):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"bare except at line {node.lineno}"


def test_docstrings_begin_with_a_verb_or_a_noun():
    riddles = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}: {words[0]} ..."
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (words := re.findall(r"\w+", ast.get_docstring(node) or ""))
        and words[0].lower() in BANNED_FIRST_WORDS
    ]
    assert not riddles


@for_each([path for path in FILES if not any(path.is_relative_to(RUNTIME / name) for name in COMPARE_WORDS)])
def test_no_room_but_config_compares_with_a_word_of_a_setting(path):
    compared = [
        each
        for node in nodes(path)
        if isinstance(node, ast.Compare | ast.MatchValue)
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and each.value in WORDS_OF_SETTINGS
    ]
    assert not [f"line {each.lineno}: {each.value}" for each in compared]


def test_no_unstable_test_has_come_back_in_three_landings():
    table = (ROOT / "tests" / "unstable.md").read_text().partition("|---|")[2]
    rows = [row.strip("|").split("|") for row in table.splitlines()[1:]]
    assert all(len(row) == 4 for row in rows)
    assert not [row[0].strip() for row in rows if len(row[3].split(",")) >= 3]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_what_is_cited_is_defined_by_a_page_of_the_repository():
    defined = {str(page.relative_to(ROOT)): anchors(page) for page in (ROOT / "docs").rglob("*.md")}
    undefined = []
    for path in CITING:
        text = path.read_text()
        for cited in CITED_PAGE.findall(text):
            page, _, anchor = cited.partition("#")
            if page not in defined or (anchor and anchor not in defined[page]):
                undefined.append(f"{path.relative_to(ROOT)}: {cited}")
        undefined += [f"{path.relative_to(ROOT)}: {number}" for number in CITED_BY_NUMBER.findall(text)]
    assert not undefined


def loaded_by(code: str) -> set[str]:
    """The top-level modules in memory after running `code`."""
    program = f"{code}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_an_error_class_loads_neither_numpy_nor_grpc():
    assert not loaded_by("from dtrain.errors import SpecError") & {"numpy", "grpc", "msgspec"}


def test_a_launch_here_loads_neither_tables_nor_what_it_has_for_other_hosts():
    code = "import dtrain_cli.main, dtrain_cli.launch.launcher, dtrain_cli.targets.local"
    assert not loaded_by(f"{code}, sys; assert 'dtrain_cli.fleet.agents' not in sys.modules") & {
        "rich",
        "optuna",
    }


def test_training_alone_does_not_load_grpc():
    assert "grpc" not in loaded_by("import dtrain as dt; dt.get_strategy(); dt.Sequential")


def test_the_stub_names_what_the_module_offers():
    import dtrain

    stub = ast.parse((RUNTIME / "__init__.pyi").read_text())
    named = {
        alias.asname
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    named |= {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    named |= {each.id for node in stub.body if isinstance(node, ast.Assign) for each in node.targets}
    assert {name for name in named if not name.startswith("_")} == set(dtrain.__all__) - {"__version__"}
    for name in dtrain.__all__:
        assert getattr(dtrain, name) is not None


# What takes in bytes from outside: it accepts or opens a connection, or opens a file that others may have written.
TAKES_IN = re.compile(
    r"\.accept\(\)|\bopen_regular\(|\bread_regular\(|\.recvmsg\(|\bdecompressed\(|\bopener\(|\burl_to_fs\("
)
FOR_ALL = {RUNTIME / name for name in ("formats/bounded_reading.py", "process/acceptor.py")}
"""What opens, decompresses and accepts for all readers."""


def test_the_pages_of_trust_and_limits_name_files_that_exist_and_every_reader_of_bytes_from_outside():
    pages = (ROOT / "docs" / name for name in ("design/trust.md", "reference/limits.md"))
    page = "".join(each.read_text() for each in pages)
    named = set(re.findall(r"`([\w/]+\.py)`", page))
    paths = {
        name: ROOT / name if name.startswith(("cli/", "benchmarks/", "tests/")) else RUNTIME / name
        for name in named
    }
    assert not [name for name, path in paths.items() if not path.is_file()]
    takes_in = {path for path in FILES if TAKES_IN.search(path.read_text())} - FOR_ALL
    assert not [str(path.relative_to(ROOT)) for path in sorted(takes_in - set(paths.values()))]
