"""Records of tf.train.Examples of 1 KB, parsed on one core: beside tf.data on one core, and beside a torch
DataLoader with 2 workers and all cores.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from benchmarks.cluster_run import PROGRAMS
from benchmarks.programs.example_parsing import PIXELS, WEIGHTS

import dtrain as dt
from dtrain.process.resources import THREAD_LIMITS


@pytest.fixture(scope="module")
def file(tmp_path_factory, request):
    """Records that differ in the length of a number."""
    path = tmp_path_factory.mktemp("examples") / "examples.tfrecord"
    drawn = np.random.default_rng(0)
    count = 20_000 if request.config.getoption("--real", default=False) else 100
    with dt.data.TFRecordWriter(path) as writer:
        for number in range(count):
            image, weights = drawn.bytes(PIXELS), drawn.random(WEIGHTS, np.float32)
            features = {
                "image": image,
                "label": number % 1000,
                "weights": weights,
                "name": f"row-{number:08}",
            }
            writer.write(dt.data.encode_example(features))
    return path


def measured(python, of, file, *words):
    command = [python, PROGRAMS / "example_parsing.py", "--of", of, "--file", file, *words]
    environment = os.environ | dict.fromkeys(THREAD_LIMITS, "1") | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [*map(str, command)], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", ["in batches", "one by one"])
def test_records_of_examples_on_one_core(beside, real, runs, tensorflow, torch, file, way):
    if not real and way == "one by one":
        pytest.skip("a short pass is that in batches: --real")
    words = [*(["--one-by-one"] if way == "one by one" else []), "--passes", 3 if real else 1]
    of = {"dtrain": sys.executable, "tf.data": tensorflow, "torch": torch}
    found = {name: [] for name, python in of.items() if python}
    for run in range(runs):
        names = list(found) if run % 2 else list(reversed(found))
        for name in names:
            found[name].append(measured(of[name], name, file, *words))
    whole = {"tf.data": ">= 0.6", "torch": ">= 1"} if way == "in batches" else {}
    for field, unit in (("per_s", "records/s"), ("per_cpu_s", "records/CPU s")):
        rates = {name: [each[field] for each in said] for name, said in found.items()}
        ours = rates.pop("dtrain")
        assert beside(f"Examples of 1 KB, one core, {way}", ours, unit, rates, whole).median > 0
