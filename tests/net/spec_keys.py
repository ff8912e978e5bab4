"""The keys of a spec as `dtrain check` knows them: which values each takes, and what is said of others.

The keys come from the product: it lists those of a section where an unknown one is written.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

from net.commands import dtrain

PROBES: tuple[Any, ...] = (
    *("none", False, True, -1, 0, 1, 0.5, 10**12, "abc", "", [], ["abc"], {}, {"abc": 1}),
)
"""What is tried on every key; "none" is how TOML writes null."""
CLUSTER = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
STRATEGIES = {
    "async": {"updates": "async"},
    "sync": {"updates": "sync"},
    "single": {"strategy": "single"},
    "mirrored": {"strategy": "mirrored"},
    "central_storage": {"strategy": "central_storage"},
    "multi_worker_mirrored": {"strategy": "multi_worker_mirrored"},
    "pipeline": {"strategy": "pipeline"},
}
CLUSTERS = {
    **dict.fromkeys(("async", "sync"), CLUSTER),
    **{name: {"chief": 1} for name in ("single", "mirrored", "central_storage")},
    "multi_worker_mirrored": {"chief": 1, "worker": 2},
    "pipeline": {"chief": 1, "worker": 2},
}
SECTIONS = {
    "": {},
    **{name: {} for name in ("cluster", "training", "data", "checkpoint", "wait", "security", "simulate")},
    **{name: {} for name in ("code", "network", "slurm", "kubernetes")},
    "restart.worker": {},
    "hosts.0": {"host": "h1"},
    "slurm.servers": {"nodes": 1},
    "kubernetes.volume": {},
    "simulate.kill.0": {"task": "worker:1", "at_s": 1},
    "simulate.pause.0": {"task": "worker:1", "at_s": 1, "for_s": 1},
    "simulate.network.0": {"between": ["worker:0", "ps:0"], "latency_ms": 1},
}
"""Every place that has keys of its own, and what must stand beside any of them."""
BESIDE: dict[str, dict[str, Any]] = {
    **{
        f"training.{key}": {"cluster": CLUSTER, "training": {"updates": "sync"}}
        for key in ("backup_workers", "deterministic")
    },
    **{
        f"training.{key}": {"cluster": CLUSTER, "training": {"updates": "sync"}}
        for key in ("replicas_to_aggregate", "weighting")
    },
    "training.outer": {"cluster": CLUSTER, "training": {"updates": "async", "local_steps": 20}},
    "training.merge": {"cluster": CLUSTER, "training": {"local_steps": 20}},
    "place": {"cluster": CLUSTER, "on": "ssh", "hosts": ["h1"]},
    "training.replicas": {"cluster": {"chief": 1}, "training": {"strategy": "mirrored"}},
    **{
        f"training.{key}": {"cluster": {"chief": 1, "worker": 2}, "training": {"strategy": "pipeline"}}
        for key in ("stages", "schedule", "microbatches", "stage_replicas")
    },
}
"""What else a spec says where a key has no use without it."""
TRIED: dict[str, tuple[Any, ...]] = {
    "name": ("a" * 100, "a" * 101, "-a", "a b"),
    "on": ("local", "ssh", "slurm", "kubernetes", "trainer", "skypilot", "ray"),
    "success": ("leader", "all_workers"),
    "environment": ({"A": "1"}, {"TF_CONFIG": "1"}, {"a b": "1"}),
    "secrets": (["A"], ["a b"]),
    "restart": ({"worker": {}}, {"boss": {}}),
    "hosts": ("h1,h2:4", ["n[1-3]:2"], ["h1", "h1"], ["h1:0"], [{"host": "h1", "slots": 2}]),
    "place": ("spread", "pack", {"ps": "spread"}, {"boss": "h1"}),
    "python": ("bin/python",),
    "cluster": (CLUSTER,),
    "training.max_staleness": (3,),
    "training.local_steps": (20, {"by_speed": 20}),
    "training.outer": ({"delayed": True}, {"optimizer": "adam"}, {"learning_rate": 0}, {"momentum": 1}),
    "training.merge": ("mean", "rda"),
    "cluster.worker": (2, ["127.0.0.1:1", "127.0.0.1:2"], ["127.0.0.1"], {"1": "127.0.0.1:1"}),
    "cluster.chief": (2, ["127.0.0.1:1"]),
    "cluster.ps": (2, ["127.0.0.1:1"]),
    "cluster.evaluator": (2,),
    "training.strategy": tuple(each["strategy"] for each in STRATEGIES.values() if "strategy" in each),
    "training.updates": ("sync", "async"),
    "training.weighting": ("replicas", "examples"),
    "training.too_few": ("wait", "shrink", "fail"),
    "training.stale_gradients": ("apply", "drop", "scale", "compensate"),
    "training.on_stale": ("skip", "retry_same_batch"),
    "training.nan_policy": ("refuse", "skip", "fail"),
    "training.placement": ("round_robin", "greedy"),
    "training.partitioner": (
        {"fixed_shards": 2},
        {"min_size": 9, "max_shards": 2},
        {"max_size": 9, "max_shards": 2},
        {"fixed_shards": 0},
    ),
    "training.compression": ("bf16", "fp16", {"top_k": 0.1}),
    "training.transport": ("auto", "grpc", "local"),
    "training.validation": ("leader", "evaluator"),
    "training.replicas": (2, 54, 55, 62, 63),
    "training.stages": ("auto", 2, 3, ["a", "b", "c"]),
    "training.schedule": ("gpipe", "1f1b", "pipedream"),
    "training.microbatches": (2, 3),
    "training.stage_replicas": ({"0": 2}, {"2": 2}, {"a": 2}, {"0": 0}),
    "checkpoint.every_s": (0.1, 0.09),
    "checkpoint.remote": ("s3://bucket/run",),
    "restart.worker.policy": ("never", "on_failure", "always"),
    "security.tls": ("auto", "off", "required"),
    "network.ports": ("20000-20999", "9-1", "1-70000"),
    "network.interface": ("10.0.0.0/24", "eth0"),
    "network.bind": ("auto", "0.0.0.0"),
    "slurm.time": ("2:00:00", "1-12:00", "90"),
    "slurm.options": (["--constraint=avx2"],),
    "slurm.setup": (["module load python"], ["a\nb"]),
    "slurm.servers": ({"nodes": 1},),
    "slurm.servers.options": (["--mem=64G"],),
    "kubernetes.jobset": ("auto",),
    "kubernetes.resources": (
        {"worker": {"cpu": 4, "memory": "8Gi", "nvidia.com/gpu": 1}},
        {"worker": {"cpu": "500m"}},
        {"boss": {}},
        {"worker": {"cpu": 0}},
        {"worker": {"memory": "8 GB"}},
        {"worker": {"memory": 8}},
        {"worker": {"a gpu": 1}},
    ),
    "kubernetes.pod": ({"spec": {"nodeSelector": {"pool": "big"}}}, {"worker": {"metadata": {}}}),
    "kubernetes.volume": ({"size": "10Gi"},),
    "kubernetes.volume.size": ("10Gi",),
    "kubernetes.volume.access": ("ReadWriteOnce", "ReadWriteMany"),
    "simulate.slow": ({"worker:1": 5.0}, {"worker:1": 0.5}, {"worker:9": 2}),
    "simulate.kill": ([{"task": "worker:1", "at_step": 2}], [{"task": "worker:1"}]),
    "simulate.pause": ([{"task": "ps:0", "at_s": 3, "for_s": 2}], [{"task": "ps:0", "at_s": 3}]),
    "simulate.network": (
        [{"between": ["worker:0", "ps:0"], "latency_ms": 2}],
        [{"between": ["worker:0", "worker:1"]}],
    ),
    "simulate.kill.0.task": ("ps:0", "worker:9", "boss:0"),
    "simulate.kill.0.at_s": ([1, 2], [2, 1]),
    "simulate.pause.0.task": ("ps:0", "worker:9"),
    "simulate.pause.0.at_s": ([1, 2],),
    "simulate.network.0.between": (["worker:1", "ps:0"], ["worker:0", "worker:1"], ["ps:0"]),
    "code.exclude": (["data/", "*.ckpt"],),
    "data.pipelines": (2,),
}
"""What is tried besides on one key: words that it takes, forms, bounds."""
IN_STRATEGIES: dict[str, Any] = {
    "backup_workers": 1,
    "replicas_to_aggregate": 3,
    "replicas": 3,
    "weighting": "examples",
    "chief_trains": False,
    "too_few": "fail",
    "too_few_timeout_s": 9,
    "staleness_bound": 2,
    "stale_gradients": "scale",
    "max_staleness": 3,
    "compensation": 0.1,
    "on_stale": "retry_same_batch",
    "warmup_steps": 1,
    "nan_policy": "fail",
    "deterministic": True,
    "placement": "greedy",
    "compression": "bf16",
    "transport": "grpc",
    "validation": "evaluator",
    "seed": 1,
    "partitioner": {"fixed_shards": 2},
    "local_steps": 20,
    "outer": {"momentum": 0.0},
    "merge": "rda",
    "stages": 3,
    "schedule": "gpipe",
    "microbatches": 4,
    "vertical_sync": True,
    "stage_replicas": {"0": 2},
}
"""A value of each key of `training` that is not its default, tried in every strategy."""


def pages(folder: Path) -> dict[str, str]:
    """Return what each key takes and refuses, each strategy's keys of `training`, and all defaults."""
    folder = folder / "specs"
    folder.mkdir()
    (folder / "train.py").write_text("import dtrain\n")
    known = {section: _keys(folder, section) for section in SECTIONS}
    lines = [f"{section or 'spec'} has {' '.join(sorted(keys))}" for section, keys in known.items()]
    for section, keys in known.items():
        for key in keys:
            lines += _lines(folder, f"{section}.{key}".lstrip("."))
    return {
        "spec/keys.txt": _text(lines),
        "spec/training_by_strategy.txt": _text(_by_strategy(folder, known["training"])),
        "spec/defaults.txt": _text(_defaults(folder)),
    }


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in sorted(lines))


def _keys(folder: Path, section: str) -> list[str]:
    code, said = _checked(folder, f"{section}.zqxzqx".lstrip("."), 1)
    found = re.search(r"unknown key; expected one of (.*)", "\n".join(said))
    assert found, f"{section}: {code} {said}"
    return found[1].split(", ")


def _lines(folder: Path, key: str) -> list[str]:
    """Return the values that a key takes, and those that it does not by what is said of them."""
    taken, refused = [], {}
    for value in (*PROBES, *TRIED.get(key, ())):
        code, said = _checked(folder, key, value, BESIDE.get(key))
        shown = json.dumps(value)
        if code == 0:
            taken.append(_short(shown))
        else:
            text = " / ".join(each.removeprefix(f"{key}: ") for each in said)
            for form in (shown, repr(value), f"{value}.0"):
                text = re.sub(rf"found {re.escape(form)}(?![.\w])", "found ...", text)
            refused.setdefault(text, []).append(_short(shown))
        assert code in (0, 2), f"{key}: {shown}: {code} {said}"
        named = any(key.partition(".")[0] in line or str(value) in line for line in said)
        assert code == 0 or named, f"{key}: {shown} is refused without the key's name: {said}"
    return [
        f"{key} takes {', '.join(taken) or 'none of these'}",
        *(f"{key} refuses {', '.join(values)}: {text}" for text, values in refused.items()),
    ]


def _short(shown: str) -> str:
    return shown if len(shown) < 90 else f"{shown[:9]}... of {len(shown) - 2}"


def _checked(folder: Path, key: str, value: Any, spec: dict[str, Any] | None = None) -> tuple[int, list[str]]:
    """Return the exit code of `check` for a spec with this value, and each line that it has said, without its
    place.
    """
    spec = json.loads(json.dumps(spec or {"cluster": CLUSTER}))
    path = key.split(".")
    place: Any = spec
    for each, inner in itertools.pairwise(path):
        if isinstance(place, list):
            place = place[int(each)]
        else:
            place = place.setdefault(each, [{}] if inner.isdecimal() else {})
    place.update(SECTIONS.get(key.rpartition(".")[0], {}), **{path[-1]: value})
    (folder / "s.toml").write_text("".join(f"{each} = {_toml(inner)}\n" for each, inner in spec.items()))
    code, out, err = dtrain("check", "s.toml", folder=folder)
    return code, [line.removeprefix("s.toml: ") for line in (err or out).splitlines()]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def _by_strategy(folder: Path, keys: list[str]) -> list[str]:
    missing = set(keys) - IN_STRATEGIES.keys() - {"strategy", "updates"}
    assert not missing, f"IN_STRATEGIES has no value of {missing}"
    lines = []
    for strategy, training in STRATEGIES.items():
        for key, value in IN_STRATEGIES.items():
            spec = {"cluster": CLUSTERS[strategy], "training": training}
            code, said = _checked(folder, f"training.{key}", value, spec)
            lines.append(f"{strategy}, {key}: {json.dumps(value)}: {code}, {' / '.join(said)}")
    return lines


def _defaults(folder: Path) -> list[str]:
    """Return the resolved spec of each strategy, key by key."""
    of_strategies: dict[str, list[str]] = {}
    for strategy, training in STRATEGIES.items():
        spec = {
            "cluster": CLUSTERS[strategy],
            "training": training,
            "restart": {role: {} for role in CLUSTER},
        }
        (folder / "s.toml").write_text("".join(f"{each} = {_toml(inner)}\n" for each, inner in spec.items()))
        code, out, err = dtrain("plan", "--json", "s.toml", "train.py", folder=folder)
        assert code == 0, err
        resolved = json.loads(json.loads(out)["tasks"][0]["environment"]["DTRAIN_SPEC"])
        for line in _flat(resolved):
            of_strategies.setdefault(line, []).append(strategy)
    every = list(STRATEGIES)
    return [line if of == every else f"{line} ({', '.join(of)})" for line, of in of_strategies.items()]


def _flat(value: Any, key: str = "") -> list[str]:
    if isinstance(value, dict) and value:
        return [line for name, each in value.items() for line in _flat(each, f"{key}.{name}".lstrip("."))]
    return [f"{key} = {json.dumps(value)}"]
