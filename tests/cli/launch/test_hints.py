"""What a launch says once: the staleness to expect, the cost of a slow task, that nothing is saved yet."""

import pytest
from cli.launch.fake_launch import SPEC, FakeTarget, TaskScript, perform
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.config import SimulateSection
from dtrain.messages.membership import TaskStatus
from dtrain.runs.files import RunRecord, SavedRecord
from dtrain_cli.launch.run_progress import UNSAVED_S, Hints
from dtrain_cli.runs.faults import cost_of_slowness

SPEC_SLOW = replace(SPEC, simulate=SimulateSection(slow={"worker:1": 8.0}))
MEASURED = {"computing_s": 0.001, "step_s": 0.025}
STALENESS = "3 replicas update asynchronously: expect a staleness of about 2 steps"
UNSAVED = "no checkpoint yet: a server's death now costs"
WORDS = ("no checkpoint yet", "asynchronously", "simulate.slow")


def hints_of(folder, record=None, chief=None, **measures):
    """The hints of a run of 60 s, in order."""
    script = TaskScript(measures=measures)
    scripts = {"chief:0": replace(chief or TaskScript(), lasts_s=60), "worker:0": script, "worker:1": script}
    target = FakeTarget(scripts, record=record or RunRecord("id", "name"))
    perform(folder, target, SPEC_SLOW)
    return [text for text in target.said if any(word in text for word in WORDS)]


def test_each_hint_is_given_once_and_none_before_it_is_measured(tmp_path):
    assert hints_of(tmp_path, staleness_mean=1.9, **MEASURED) == [
        f"{STALENESS}; lower the learning rate if the loss rises or jumps",
        "simulate.slow: worker:1 computes 8 times slower: a step computes 1.0 ms of 25: x 8 makes it up to 32",
        f"{UNSAVED} all 9 steps; --set checkpoint.every_steps=N saves more often",
    ]


def test_a_synchronous_run_that_is_saved_and_has_measured_nothing_gets_no_hint(tmp_path):
    assert hints_of(tmp_path, chief=TaskScript(saved_step=5)) == []


def test_a_resumed_run_has_had_its_hints(tmp_path):
    resumed = RunRecord("id", "name", saved=SavedRecord(0, "here"))
    assert hints_of(tmp_path, resumed, staleness_mean=1.9, **MEASURED) == []


def test_a_run_without_a_checkpoint_is_told_after_a_while_of_steps_what_it_would_lose(tmp_path):
    supervisor, _ = perform(tmp_path, FakeTarget({"chief:0": TaskScript(0.1)}))
    begin = SavedRecord(0, "here")

    def said(*looks, lives=supervisor.lives):
        hints = Hints(SPEC, lives)
        return [text.partition(";")[0] for look in looks for text in hints.due(*look)]

    late_s = 100.0 + UNSAVED_S
    waits = [(begin, None, 0.0), (begin, 0, 99.0)]
    told = f"{UNSAVED} all 1,393 steps"
    assert said(*waits, (begin, 1, 100.0), (begin, 700, late_s - 0.1)) == []
    assert said(*waits, (None, 1, 100.0), (begin, 1393, late_s), (begin, 2000, 2 * late_s)) == [told]
    assert said((begin, 1, 100.0), (SavedRecord(7, "here"), 9, 101.0), (begin, 2000, late_s)) == []
    alone = {task: life for task, life in supervisor.lives.items() if task != TaskId.parse("ps:0")}
    assert said((begin, 1, 100.0), (begin, 1393, late_s), lives=alone) == []


@pytest.mark.parametrize(
    ("computing_s", "step_s", "factor", "text"),
    [
        (0.001, 0.025, 8, "a step computes 1.0 ms of 25: x 8 makes it up to 32"),
        (0.0123, 0.0123, 1.5, "a step computes 12 ms of 12: x 1.5 makes it up to 18"),
        (0.5, 2.25, 4, "a step computes 500 ms of 2250: x 4 makes it up to 3750"),
        (0.001, 0.025, 1, None),
        (None, 0.025, 8, None),
    ],
)
def test_what_a_slow_task_costs(computing_s, step_s, factor, text):
    said = TaskStatus("worker:1", 1, "here", computing_s=computing_s, step_s=step_s)
    assert cost_of_slowness(said, factor) == text
