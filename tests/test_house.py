"""The rules of the house, as a test: floors, bans, sizes. docs/design/architecture.md draws what is enforced here."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUNTIME = ROOT / "runtime" / "dtrain"
CLI = ROOT / "cli" / "dtrain_cli"
FILES = sorted([*RUNTIME.rglob("*.py"), *CLI.rglob("*.py")])

# A file imports only from floors below its own, or from its own room. The longest matching name counts.
FLOORS = {
    "allocation": 0,
    "json_file": 0,
    "errors": 0,
    "variables": 1,
    "cluster": 1,
    "config": 1,
    "run_files": 1,
    "task_states": 1,
    "claims": 1,
    "verdict": 1,
    "messages": 1,
    "assignment": 1,
    "announcing": 1,
    "start_orders": 1,
    "model_order": 1,
    "life_line": 1,
    "living": 1,
    "crc32c": 1,
    "records": 1,
    "learning": 2,
    "data": 2,
    "protocol": 2,
    "wire": 2,
    "checkpoints": 2,
    "summaries": 2,
    "reporting": 2,
    "failure": 2,
    "metrics_log": 2,
    "hand_run": 3,
    "roles": 3,
    "strategy": 4,
    "strategies": 5,
    "callbacks": 5,
    "distribute": 5,
    "saving": 5,
    "training": 6,
    "models": 7,
    "model_command": 7,
    "task": 7,
}
# Floors 0 and 1 are nouns, each of which may use those before it; what can be run, on floor 7, may use each other too.
FILES_IN_ONE_ROOM = {0, 1, 7}
# cli/ sees of the runtime only the lowest floors.
SEEN_BY_CLI = {name for name, floor in FLOORS.items() if floor <= 1}

# What in roles/ owns a thread or a clock, besides the drivers.
THREADS = {"heartbeat", "checkpoint_thread", "copies_thread", "followed_run", "keeper", "saver"}
MACHINES = [
    *(RUNTIME / "protocol").glob("*.py"),
    *(RUNTIME / "learning").rglob("*.py"),
    *(p for p in (RUNTIME / "roles").rglob("*.py") if not p.stem.endswith("driver") and p.stem not in THREADS),
]
BANNED_IN_MACHINES = {"time", "random", "socket", "threading", "logging"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70


def imports(path: Path) -> list[str]:
    """Every module that a file imports anywhere in it, by full name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def room(module: str) -> str | None:
    """The first name below `dtrain` of a module; None for others, and for the face itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "dtrain" and len(parts) > 1 else None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_from_below(path):
    inside_runtime = path.is_relative_to(RUNTIME)
    own = path.relative_to(RUNTIME).parts[0].removesuffix(".py") if inside_runtime else None
    if own == "__init__":
        return
    for module in imports(path):
        assert not (inside_runtime and module.startswith("dtrain_cli")), f"the runtime must not know the launcher: {module}"
        target = room(module)
        if target is None or target == own or target not in FLOORS:
            continue
        if not inside_runtime:
            assert target in SEEN_BY_CLI, f"cli/ may not see {module}"
        elif FLOORS[own] in FILES_IN_ONE_ROOM:
            assert FLOORS[target] <= FLOORS[own], f"{own} (floor {FLOORS[own]}) imports {module} (floor {FLOORS[target]})"
        else:
            assert FLOORS[target] < FLOORS[own], f"{own} (floor {FLOORS[own]}) imports {module} (floor {FLOORS[target]})"


def test_every_room_has_a_floor():
    rooms = {path.relative_to(RUNTIME).parts[0].removesuffix(".py") for path in RUNTIME.rglob("*.py")} - {"__init__"}
    assert rooms == set(FLOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_grpc_is_imported_in_wire_alone(path):
    if not path.is_relative_to(RUNTIME / "wire"):
        assert not [module for module in imports(path) if module.split(".")[0] == "grpc"]


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: str(path.relative_to(ROOT)))
def test_machines_have_no_clock_chance_socket_or_thread(path):
    assert not {module.split(".")[0] for module in imports(path)} & BANNED_IN_MACHINES


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_sizes_and_excepts(path):
    text = path.read_text()
    assert path.stem not in BANNED_NAMES
    assert len(text.splitlines()) <= MAX_FILE_LINES, f"{path} has {len(text.splitlines())} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"bare except at line {node.lineno}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


def loaded_by(code: str) -> set[str]:
    """The top-level modules in memory after running `code`."""
    program = f"{code}\nimport sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split())


def test_an_error_class_loads_neither_numpy_nor_grpc():
    assert not loaded_by("from dtrain.errors import SpecError") & {"numpy", "grpc", "pydantic", "msgspec"}


def test_training_alone_does_not_load_grpc():
    assert "grpc" not in loaded_by("import dtrain as dt; dt.get_strategy(); dt.Sequential")


def test_the_stub_names_what_the_module_offers():
    import dtrain

    stub = ast.parse((RUNTIME / "__init__.pyi").read_text())
    named = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    named |= {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    named |= {node.targets[0].id for node in stub.body if isinstance(node, ast.Assign)}
    assert {name for name in named if not name.startswith("_")} == set(dtrain.__all__) - {"__version__"}
    for name in dtrain.__all__:
        assert getattr(dtrain, name) is not None
