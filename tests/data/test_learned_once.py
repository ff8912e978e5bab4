"""What one task learns from data the others take over, also those that are started again."""

import json
import multiprocessing

import numpy as np
import pytest

import dtrain as dt
from dtrain.data.distribution import once
from dtrain.process.assignment import RUN_DIR


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN_DIR, str(tmp_path))
    return tmp_path


def task():
    """Begin anew, as another task of the same run does."""
    once._calls.clear()


def batches(read):
    def note(x):
        read.append(len(read))
        return x

    return dt.data.Dataset.from_tensor_slices(np.array([[1.0], [3.0], [8.0]], np.float32)).map(note).batch(2)


def test_each_layer_reads_its_data_in_one_task_and_has_the_same_state_in_all(run_dir):
    read, states = [], []
    for _ in range(3):
        task()
        first, second = dt.layers.Normalization(), dt.layers.Normalization()
        words = dt.layers.StringLookup()
        first.adapt(batches(read))
        second.adapt(np.array([[5.0], [7.0]]))
        words.adapt(np.array(["b", "a", "b"]))
        states.append((first.mean, first.variance, second.mean, words.get_vocabulary()))
    assert len(read) == 3, "each example once"
    assert states == [states[0]] * 3
    assert states[0][0] == [4.0]
    assert states[0][3] == ["[UNK]", "b", "a"]


def test_without_a_run_every_program_reads_for_itself(monkeypatch):
    monkeypatch.delenv(RUN_DIR, raising=False)
    read = []
    for _ in range(2):
        dt.layers.Normalization().adapt(batches(read))
    assert len(read) == 6


def test_a_task_that_fails_leaves_nothing_and_the_next_one_learns(run_dir):
    with pytest.raises(ValueError, match="damaged"):
        once.learned_once("layer", "", lambda: (_ for _ in ()).throw(ValueError("damaged")))
    task()
    assert once.learned_once("layer", "", lambda: [1, "a", None]) == [1, "a", None]
    [kept] = (run_dir / "data_index" / "adapted").iterdir()
    assert json.loads(kept.read_text()) == [1, "a", None]
    kept.write_text("{")
    task()
    assert once.learned_once("layer", "", lambda: [2]) == [2], "what is damaged is learned anew"


def _learn(count, started):
    def learn():
        with count.get_lock():
            count.value += 1
        return [7]

    started.wait(30)
    assert once.learned_once("layer", "", learn) == [7]


def test_tasks_that_come_at_once_wait_for_the_first(run_dir):
    context = multiprocessing.get_context("fork")
    count, started = context.Value("i", 0), context.Event()
    tasks = [context.Process(target=_learn, args=(count, started)) for _ in range(3)]
    for each in tasks:
        each.start()
    started.set()
    for each in tasks:
        each.join(60)
    assert [each.exitcode for each in tasks] == [0, 0, 0]
    assert count.value == 1


class Leader:
    """The way of several tasks to one leader, in the place of the control plane."""

    def __init__(self):
        self.leads = True
        self.told = {}

    def __call__(self, key, who, wait_s, learn):
        if self.leads:
            self.told[key] = learn()
        return self.told.get(key, b"")


@pytest.fixture
def leader():
    leader = Leader()
    once.share_over_hosts(leader)
    yield leader
    once.share_over_hosts(None)


def test_without_a_common_folder_the_leader_reads_and_the_others_ask_it(leader, monkeypatch):
    monkeypatch.delenv(RUN_DIR, raising=False)
    read, states = [], []
    for leads in (True, False, False):
        task()
        leader.leads = leads
        numbers, words = dt.layers.Normalization(), dt.layers.StringLookup()
        numbers.adapt(batches(read))
        words.adapt(np.array(["b", "a", "b"]))
        states.append((numbers.mean, numbers.variance, words.get_vocabulary()))
    assert len(read) == 3, "each example once"
    assert states == [states[0]] * 3


def test_a_task_that_the_leader_cannot_help_learns_for_itself(leader, monkeypatch):
    monkeypatch.delenv(RUN_DIR, raising=False)
    leader.leads = False
    assert once.learned_once("layer", "", lambda: [3]) == [3]


def test_a_damaged_answer_is_named(leader):
    leader.told = dict.fromkeys([once.sha256(b"layer  1").hexdigest()[:24]], b"{")
    leader.leads = False
    task()
    with pytest.raises(dt.errors.InputError, match="adapt layer: what the leader has learned is damaged"):
        once.learned_once("layer", "", lambda: [3])
