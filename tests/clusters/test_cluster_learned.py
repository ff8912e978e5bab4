"""Tasks that share no run directory, as on several hosts: the leader adapts a layer for all of them."""

import re
from pathlib import Path

from clusters.hand import HandCluster

ADAPTS = """
import sys
import numpy as np
import dtrain as dt

def note(word):
    with open("read.txt", "a") as file:
        file.write(f"{word.decode()}\\n")
    return word

with dt.get_strategy().scope():
    words = dt.layers.StringLookup(output_mode="multi_hot")
    words.adapt(dt.data.Dataset.from_tensor_slices([b"b", b"a", b"b"]).map(note).batch(2))
    print("words", words.get_vocabulary(), flush=True)
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse")
x = words(np.array([["a"], ["b"]] * 4))
model.fit(x, x[:, :1], batch_size=8, epochs=1, steps_per_epoch=3, verbose=0)
"""


def end(launcher, cluster):
    cluster.succeed()
    said = {
        re.search("^words (.*)", command.out, re.M)[1]
        for task, command in cluster.commands.items()
        if not task.startswith("ps")
    }
    assert said == {"['[UNK]', 'b', 'a']"}
    servers = [command for task, command in cluster.commands.items() if task.startswith("ps")]
    assert not any("words" in command.out for command in servers), "a server never runs the program"
    assert Path(launcher.folder / "read.txt").read_text().split() == ["b", "a", "b"], "each example once"


def test_with_servers_the_chief_reads_the_data_and_every_task_has_the_vocabulary(launcher):
    (launcher.folder / "adapts.py").write_text(ADAPTS)
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    words = ("--spec", cluster.spec(evaluator=1), "--index", "0", "adapts.py")
    cluster.start_all(lambda task: cluster.start(task, *words), "evaluator:0")
    end(launcher, cluster)


def test_an_evaluator_has_the_vocabulary_of_the_task_that_trains_in_threads(launcher):
    (launcher.folder / "adapts.py").write_text(ADAPTS)
    cluster = HandCluster(launcher, chief=1)
    spec = cluster.spec(evaluator=1, training={"strategy": "mirrored"})
    for task in ("evaluator:0", "chief:0"):
        cluster.start(task, "--spec", spec, "--index", "0", "adapts.py")
    end(launcher, cluster)


def test_without_servers_the_first_worker_reads_the_data(launcher):
    (launcher.folder / "adapts.py").write_text(ADAPTS)
    cluster = HandCluster(launcher, worker=2)
    spec = cluster.spec(training={"strategy": "multi_worker_mirrored"})
    for task in ("worker:1", "worker:0"):
        cluster.start(task, "--spec", spec, "--index", task.partition(":")[2], "adapts.py")
    end(launcher, cluster)
