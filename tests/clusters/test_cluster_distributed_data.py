"""Distributed datasets of real tasks without servers: golden file b2, every case in one run."""

import json
from pathlib import Path

import pytest
from conformance.golden import golden_dir, load_json

CLUSTERS = load_json("b2_multiworker.json")["clusters"]
PROGRAM = """
    import json
    import sys
    from pathlib import Path

    sys.path.insert(0, {tests!r})
    import dtrain as dt
    from conformance.golden import load_json
    from conformance.test_distributed_datasets_golden import distributed, local

    [cluster] = [each for each in load_json("b2_multiworker.json")["clusters"] if each["workers"] == {workers}]
    strategy = dt.get_strategy()
    found = []
    for number, case in enumerate(cluster["cases"]):
        folder = Path(f"files-{{strategy.rank}}-{{number}}")
        contexts = []
        batches = [local(strategy, batch) for batch in distributed(strategy, case, folder, contexts)]
        found.append([[batch for [batch] in batches], contexts])
    Path(f"found-{{strategy.rank}}").write_text(json.dumps(found))
"""


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: f"{cluster['workers']} workers")
def test_every_worker_gets_tensorflows_batches_and_all_end_together(cluster, launcher, monkeypatch):
    workers = cluster["workers"]
    monkeypatch.setenv("DTRAIN_GOLDEN", str(golden_dir().resolve()))
    text = PROGRAM.format(tests=str(Path(__file__).parents[1]), workers=workers)
    (launcher.folder / "program.py").write_text("\n".join(line[4:] for line in text.splitlines()))
    size = ("--strategy", "multi_worker_mirrored", "--workers", str(workers - 1), "--no-evaluator")
    launch = launcher.start(*size, "program.py")
    assert launch.end() == 0, launch.err
    launch.wait_gone()
    found = [json.loads((launcher.folder / f"found-{rank}").read_text()) for rank in range(workers)]
    for number, case in enumerate(cluster["cases"]):
        of_workers = [each[number] for each in found]
        steps = [list(step) for step in zip(*(batches for batches, _ in of_workers), strict=True)]
        assert steps == case["global_steps"], case
        contexts = sorted(each for _, contexts in of_workers for each in contexts)
        assert contexts == case.get("input_contexts", [])
