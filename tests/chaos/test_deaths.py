"""The stories of deaths: what is drawn, what the judge finds, and a night that goes on where it was stopped."""

import json

import pytest
from chaos import deaths, night
from chaos.deaths import FAULTS, WAYS, draw

TOLD = {"bits": "a", "history": [{"loss": [119.5, 119.5]}], "leads": False, "miscounted": {}}


def told(death, **others):
    """What all tell at the end of a good run, but for some."""
    good = {task: TOLD | {"leads": task == "chief:0"} for task in death.replicas}
    return {task: each | others.get(task.replace(":", "_"), {}) for task, each in good.items()}


def test_every_strategy_has_each_of_its_faults_in_turn():
    drawn = {(death.strategy, death.fault) for death in map(draw, range(len(WAYS) * 12))}
    assert drawn == {(name, fault) for name, way in WAYS.items() for fault in FAULTS[way.place]} - {
        ("servers over hosts", deaths.CUT_TO_THE_END)
    }


@pytest.mark.parametrize(
    ("others", "wrong"),
    [
        ({}, ""),
        ({"worker_1": {"miscounted": {"7": [1.0, 2.0]}}}, "count at worker:1: {'7': [1.0, 2.0]}"),
        ({"worker_1": {"bits": "b"}}, "tasks differ in bits"),
        ({"worker_1": {"history": [{"loss": [119.5, 119.25]}]}}, "tasks differ in history"),
        ({"worker_1": {"history": [{"loss": [119.5]}]}}, "1 epochs, expected 2"),
        ({"worker_1": {"history": [{"loss": [119.5, 119.25]}]}}, "the mean of an epoch is 119.25"),
    ],
)
def test_the_judge_says_what_differs(others, wrong):
    death = next(
        death for death in map(draw, range(200)) if death.strategy == "servers, sync" and not death.exact
    )
    found = "\n".join(deaths.judge(death, told(death, **others)))
    assert wrong in found
    assert bool(found) == bool(others)


def test_an_asynchronous_epoch_may_have_batches_of_the_next_one():
    death = next(death for death in map(draw, range(200)) if death.strategy == "servers, async")
    shared = {task.replace(":", "_"): {"history": [{"loss": [119.0, 120.0]}]} for task in death.replicas}
    assert deaths.judge(death, told(death, **shared)) == []


def test_bits_are_compared_with_those_of_a_quiet_run():
    death = next(death for death in map(draw, range(200)) if death.exact)
    assert deaths.judge(death, told(death), TOLD) == []
    assert "a quiet run" in deaths.judge(death, told(death), TOLD | {"bits": "b"})[0]


def test_who_was_not_struck_has_to_tell_and_one_has_to_in_any_case():
    death = next(death for death in map(draw, range(200)) if death.struck == {"worker:0"} and not death.exact)
    silent = {task: each for task, each in told(death).items() if task != "worker:0"}
    assert deaths.judge(death, silent) == []
    del silent["worker:1"]
    assert deaths.judge(death, silent) == ["worker:1 has told nothing at its end"]
    assert "no task has told anything at its end" in deaths.judge(death, {})


def test_two_groups_that_both_went_on_after_a_partition_are_found():
    death = next(death for death in map(draw, range(200)) if death.fault == "cut long" and not death.exact)
    found = deaths.judge(death, told(death, worker_1={"leads": True}))
    assert found == ["all of these lead at the end: ['chief:0', 'worker:1']"]


def test_a_night_goes_on_where_it_was_stopped(tmp_path, capsys):
    """Stories that have been told are not told again, also where the last line was cut off."""
    file = tmp_path / "told.jsonl"
    lines = [
        {"kind": "deaths", "seed": seed, "of": "single", "fault": "kill", "code": code, "out": ""}
        for seed, code in enumerate([0, 1, 77])
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "dea')
    assert night.main(["deaths", "3", str(file)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "deaths: seeds 0 to 2, 0 of them are still to be told",
        "single  all 1/2, kill 1/2",
        "all     all 1/2",
    ]
    assert night.told_before(file, "bits") == {}
