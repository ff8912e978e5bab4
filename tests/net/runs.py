"""What runs leave behind and say of themselves: a small run of each strategy, and runs that end in other ways."""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launching import Command, Launcher, wait_until
from net.commands import ENVIRONMENT, dtrain
from net.exact_models import expected

PROGRAM = Path(__file__).parent / "exact_models.py"
ONE_EACH = ("--workers", "1", "--no-evaluator")
STRATEGIES = {
    "single": ("--strategy", "single"),
    "mirrored": ("--strategy", "mirrored", "--no-evaluator"),
    "central_storage": ("--strategy", "central_storage", "--no-evaluator"),
    "multi_worker_mirrored": ("--strategy", "multi_worker_mirrored", *ONE_EACH),
    "sync": ("--updates", "sync", "--ps", "1", *ONE_EACH),
    "async": ("--set", "training.chief_trains=false", "--ps", "1", *ONE_EACH),
}
HELD = "async"
"""The run that waits in its midst until it has been looked at."""
ONE_TASK = ("--workers", "1", "--ps", "0", "--no-evaluator", "--set", "cluster.chief=0")
RESTARTED = ("--set", "restart.worker={policy: on_failure, max: 1, backoff_s: 0}")
ENDS = {
    "a command that exits with 0": (*ONE_TASK, "--", "sh", "-c", "exit 0"),
    "a command that exits with 3": (*ONE_TASK, "--", "sh", "-c", "exit 3"),
    "a command that SIGKILL ends, twice": (*ONE_TASK, *RESTARTED, "--", "sh", "-c", "kill -9 $$"),
    "a program that raises an exception": ("--strategy", "single", "raising.py"),
    "a program that never calls dtrain": ("--strategy", "single", "train.py"),
    "--timeout": (*ONE_TASK, "--timeout", "0.1", "--", "sleep", "1000"),
    "--start-timeout": ("--strategy", "single", "--start-timeout", "0.1", "sleeping.py"),
}
SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")
BY_TIMING: dict[str, type] = {
    **dict.fromkeys(("examples_per_s", "waiting_share", "input_share", "reading_s", "stalled_s"), float),
    **dict.fromkeys(("computing_s", "step_s"), float),
    **dict.fromkeys(
        ("heartbeat_age_s", "cpu_percent", "staleness_mean", "loss", "waiting_monotonic_s"), float
    ),
    **dict.fromkeys(("memory_bytes", "stale_gradients", "bytes_sent", "bytes_received", "step", "pid"), int),
    **dict.fromkeys(("max_steps", "peak_memory_bytes", "saved_step", "exit_code"), int),
    **dict.fromkeys(("waiting_for", "busy_with", "message"), str),
    "reading_monotonic_s": float,
    "leads": bool,
}
"""What is null or of this type, as it happens at the moment that is looked at."""
EXACT = ("format", "version", "state", "kind")
"""What is shown with its value."""
METRICS = {
    "examples_per_s",
    "waiting_share",
    "input_share",
    "staleness_mean",
    "staleness_counts",
    "stale_gradients",
}
"""What a line of metrics has of a task where it applies, beside its step and loss."""
MEASURED = ("multi_worker_mirrored", "sync", "async")
"""The strategies whose leader writes metrics."""
FAILED = "end-3"
"""The run whose program raises an exception."""


def pages(folder: Path) -> dict[str, str]:
    """Return what each strategy has come to, the files of the runs, what commands say of them, and exit codes."""
    folder = folder / "runs_of_strategies"
    folder.mkdir()
    (folder / "train.py").write_text("import dtrain\n")
    (folder / "sleeping.py").write_text("import time\ntime.sleep(1000)\n")
    (folder / "raising.py").write_text(
        "import dtrain\ndtrain.get_strategy()\nraise ValueError('on purpose')\n"
    )
    launcher = Launcher(folder)
    try:
        return _looked_at(folder, launcher)
    finally:
        launcher.close()


def _looked_at(folder: Path, launcher: Launcher) -> dict[str, str]:
    def start(name: str, *words: str) -> Command:
        return launcher.dtrain("launch", "--name", name, *words, environment=ENVIRONMENT)

    started = {}
    for name, words in STRATEGIES.items():
        more = ["held"] if name == HELD else []
        started[name] = start(name, "--json", *words, str(PROGRAM), name, *more)
    live = _held(folder, started[HELD])
    lost = dtrain("chaos", HELD, "kill", "worker:7", folder=folder)[0]
    (folder / "held").touch()
    for name, launch in started.items():
        assert launch.end() == 0, f"{name}: {launch.out}{launch.err}"
    ends = {name: start(f"end-{number}", *words) for number, (name, words) in enumerate(ENDS.items())}
    stopped = {name: start(name, *ONE_TASK, "--", "sleep", "1000") for name in SIGNALS}
    for name, launch in stopped.items():
        _wait(folder, launch, name, "running")
        launch.send(getattr(signal, name))
    codes = [f"launch, {name}: {launch.end()}" for name, launch in (ends | stopped).items()]
    codes.append(f"chaos of a task that the run does not have: {lost}")
    of_strategies = {name: _directory(folder, name) for name in STRATEGIES}
    directories = of_strategies | {"failed": _directory(folder, FAILED)}
    statuses = {name: _json(folder, "status", each.name) for name, each in directories.items()}
    statuses |= {"live": live, "launch --json": json.loads(started["sync"].out.splitlines()[-1])}
    return {
        "runs/weights.txt": _text(_weights(of_strategies)),
        "runs/status.txt": _grouped({name: list(_kinds(each)) for name, each in statuses.items()}),
        "runs/runs.txt": _text({f"[]{key}" for each in _json(folder, "runs") for key in _kinds(each)}),
        "runs/files.txt": _grouped({name: _files(each) for name, each in directories.items()}),
        "runs/records.txt": _grouped({name: list(_records(each)) for name, each in directories.items()}),
        "runs/checkpoints.txt": _grouped(
            {name: list(_checkpoint(each)) for name, each in of_strategies.items()}
        ),
        "runs/events.txt": _text(
            {line for each in (folder / "runs").glob("*/events.jsonl") for line in _events(each)}
        ),
        "runs/metrics.txt": _text({line for name in MEASURED for line in _metrics(of_strategies[name])}),
        "runs/saved_model.txt": _text(_header(folder / "single.safetensors")),
        "runs/given_to_tasks.txt": _text(_given(of_strategies)),
        "runs/plan.txt": _plan(folder, "train.py"),
        "runs/plan_of_a_command.txt": _plan(folder, "--", "sleep", "1"),
        "exit_codes.txt": _text([*codes, *_other_codes(folder)]),
    }


def _text(lines: Any) -> str:
    return "".join(f"{line}\n" for line in sorted(lines))


def _grouped(found: dict[str, list[str]]) -> str:
    """Return lines, each with those in which it is found, if not in all."""
    having: dict[str, list[str]] = {}
    for name, lines in found.items():
        for line in dict.fromkeys(lines):
            having.setdefault(line, []).append(name)
    told = []
    for line, names in having.items():
        others = [name for name in found if name not in names]
        only = f" (not: {', '.join(others)})" if len(others) < len(names) else f" ({', '.join(names)})"
        told.append(line + (only if others else ""))
    return _text(told)


def _directory(folder: Path, name: str) -> Path:
    [found] = [
        each.parent
        for each in (folder / "runs").glob("*/run.json")
        if json.loads(each.read_text())["name"] == name
    ]
    return found


def _wait(folder: Path, launch: Command, name: str, state: str) -> None:
    def reached() -> bool:
        assert launch.process.poll() is None, launch.process.communicate()
        return any(
            (record := json.loads(each.read_text()))["name"] == name and record["state"] == state
            for each in (folder / "runs").glob("*/run.json")
        )

    wait_until(reached, f"{name} is {state}")


def _held(folder: Path, launch: Command) -> Any:
    """Return the status of the run that waits, once each of its tasks has been heard."""
    _wait(folder, launch, HELD, "running")

    def heard() -> Any:
        status = _json(folder, "status", HELD)
        return (
            status
            if all(task["step"] == 4 and task["state"] == "running" for task in status["tasks"])
            else None
        )

    return wait_until(heard, "every task has said its step")


def _json(folder: Path, *words: str) -> Any:
    code, out, err = dtrain(*words, "--json", folder=folder)
    assert code in (0, 1, 4), f"{words}: {err}"
    return json.loads(out)


def _kinds(value: Any, key: str = "") -> Iterator[str]:
    """Yield each key with the type of its value; who was waited for is a matter of timing."""
    if isinstance(value, dict) and value and not key.endswith(".waited_for"):
        for name, each in value.items():
            name = re.sub(r"^(chief|worker|ps|evaluator):\d+$", "TASK", name)
            yield from _kinds(each, f"{key}.{name}")
    elif isinstance(value, list) and value:
        for each in value:
            yield from _kinds(each, f"{key}[]")
    else:
        name = key.rpartition(".")[2]
        own = BY_TIMING.get(name)
        if name in EXACT:
            yield f"{key} = {json.dumps(value)}"
        elif own and (value is None or type(value) is own):
            yield f"{key}: {own.__name__} or null"
        else:
            yield f"{key}: {'null' if value is None else type(value).__name__}"


def _files(directory: Path) -> list[str]:
    """Return the files of a run but those that depend on how far a server came before it was told to stop."""
    found = [each.relative_to(directory).as_posix() for each in directory.rglob("*") if not each.is_dir()]
    return [
        f"{name} {oct((directory / name).stat().st_mode & 0o777)}"
        for name in found
        if not re.search(r"ps-\d+/attempt-\d+/failure.json$", name)
    ]


def _records(directory: Path) -> Iterator[str]:
    """Yield the keys of the JSON files of a run."""
    for path in (directory / "run.json", directory / "plan.json", *directory.glob("tasks/*/status.json")):
        task = "" if path.parent == directory else "tasks/TASK/"
        found = _kinds(json.loads(path.read_text()))
        yield from (f"{task}{path.name} {line}" for line in found if ".staleness_counts." not in line)
    for path in directory.glob("tasks/[!p]*/attempt-0/failure.json"):
        yield from (f"failure.json {line}" for line in _kinds(json.loads(path.read_text())))


def _metrics(directory: Path) -> Iterator[str]:
    """Yield the keys of a run's lines of metrics; of tasks, those that do not depend on how long it has taken."""
    for each in map(json.loads, (directory / "metrics.jsonl").read_text().splitlines()):
        for task in each["tasks"].values():
            yield from (f".tasks.TASK.{name}" for name in task.keys() - METRICS)
        yield from _kinds({**each, "tasks": {}})


def _checkpoint(directory: Path) -> Iterator[str]:
    """Yield the keys of a manifest, and the arrays, of the last checkpoint of a run."""
    for path in directory.glob("checkpoints/ckpt-8/*"):
        if path.suffix == ".json":
            found = _kinds(json.loads(path.read_text()))
            yield from (f"{path.name} {line}" for line in found if not re.search(r"\.(seen|dealt)\[", line))
        else:
            yield from (f"{path.name} {line}" for line in _header(path))


def _header(path: Path) -> list[str]:
    """Return what the header of a safetensors file says, with all that describes a model."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    metadata = header.pop("__metadata__", {})
    lines = [f"{name}: {each['dtype']} {each['shape']}" for name, each in header.items()]
    for key, value in metadata.items():
        if key == "description":
            lines += [f"{key}{line}" for line in _flat(json.loads(value))]
        else:
            lines.append(f"metadata {key}: {value if key != 'crc32' else '...'}")
    return lines


def _flat(value: Any, key: str = "") -> list[str]:
    if isinstance(value, dict) and value:
        return [line for name, each in value.items() for line in _flat(each, f"{key}.{name}")]
    if isinstance(value, list) and value:
        return [line for number, each in enumerate(value) for line in _flat(each, f"{key}[{number}]")]
    return [f"{key} = {json.dumps(value)}"]


def _events(path: Path) -> Iterator[str]:
    """Yield the kinds of events of a run with their keys."""
    for line in path.read_text().splitlines():
        event = json.loads(line)
        yield f"{event['event']}: {', '.join(each[1:] for each in sorted(_kinds(event)))}"


def _said(directory: Path) -> dict[str, Any]:
    """Return what the program has printed in the task that leads."""
    log = (directory / "tasks/chief-0/attempt-0/output.log").read_text()
    return json.loads(next(line for line in log.splitlines() if line.startswith("NET "))[4:])  # type: ignore[no-any-return]


def _weights(directories: dict[str, Path]) -> list[str]:
    """Return the hashes of the trained weights, and the weights that one process must come to."""
    right = expected()
    lines = [f"expected, {name}: {right[name]}" for name in ("dense", "table")]
    for name in STRATEGIES:
        said = _said(directories[name])
        lines += [f"{name}, sha256: {said['sha256']}", f"{name}, history: {' '.join(said['history'])}"]
        if {key: said[key] for key in right} != right:
            lines.append(f"{name}: WRONG: dense {said['dense']}, table {said['table']}")
    return lines


def _masked(text: str, folder: Path) -> str:
    text = (
        text.replace(str(folder), "FOLDER")
        .replace(sys.executable, "PYTHON")
        .replace(socket.gethostname(), "HOST")
    )
    text = re.sub(r"(127\.0\.0\.1|localhost):\d+", r"\1:PORT", text)
    return re.sub(r"\d{8}-\d{6}-([\w-]+)-[0-9a-f]{4}", r"DATE-\1-ID", text)


def _given(directories: dict[str, Path]) -> list[str]:
    lines = []
    for name in STRATEGIES:
        said = _said(directories[name])
        given = [each for each in said["variables"] if each not in os.environ and "TEST" not in each]
        lines += [f"{name}: TF_CONFIG {_masked(said['TF_CONFIG'], directories[name])}"]
        lines += [f"{name}: variables {' '.join(given)}"]
    return lines


def _plan(folder: Path, *words: str) -> str:
    """Return `plan --json` value by value, but for the spec, which stands in the defaults, and numbers of cores."""
    code, out, err = dtrain("plan", "--json", *words, folder=folder)
    assert code == 0, err
    plan = json.loads(out)
    tasks = {task["task"]: _flat(task, ".tasks[]") for task in plan.pop("tasks")}
    lines = _masked(_text(_flat(plan)) + _grouped(tasks), folder).splitlines()
    lines = [re.sub(r'THREADS = "\d+"', "THREADS = CORES / TASKS", line) for line in lines]
    lines = [re.sub(r'MASTER_PORT = "\d+"', "MASTER_PORT = PORT", line) for line in lines]
    return _text(line for line in lines if ".DTRAIN_SPEC = " not in line)


def _other_codes(folder: Path) -> Iterator[str]:
    rows = {
        "status of a run that succeeded": "status single",
        "status of a run that failed": "status end-3",
        "status of a run that was stopped": "status SIGTERM",
        "status of no run": "status nothing",
        "status --watch of a run that has ended": "status single --watch",
        "logs of a run": "logs single",
        "logs of a task that the run does not have": "logs single worker:7",
        "logs of no run": "logs nothing",
        "stop of a run that has ended": "stop single",
        "stop of no run": "stop nothing",
        "chaos of a run that has ended": "chaos single kill chief:0",
        "chaos of no run": "chaos nothing kill worker:0",
        "trace of a run without one": "trace single",
        "runs": "runs",
        "rm --dry-run of a run": "rm single --dry-run",
        "plan": "plan train.py",
        "env": "env --json",
        "--version": "--version",
        "no words": "",
        "an unknown command": "lunch",
        "an unknown option": "status --lunch",
        "launch of a program that is missing": "launch missing.py",
        "launch into a directory of something else": "launch --run-dir . train.py",
        "launch --resume of no run": "launch --resume nothing train.py",
        "completion": "completion bash",
    }
    for name, words in rows.items():
        yield f"{name}: {dtrain(*words.split(), folder=folder)[0]}"
