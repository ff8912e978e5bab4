"""The file of a study: every mistake at once, each with its line."""

import pytest

from dtrain.errors import SpecError
from dtrain.studies.study_spec import Better, memory_bytes
from dtrain_cli.study.study import changed, read_study

GOOD = """\
name: search
metric: {accuracy: maximize}
parameters:
  rate: {min: 1.0e-3, max: 10, scale: log}
  units: {min: 1, max: 300, type: int}
  optimizer: [sgd, adam]
max_trial_count: 100
parallel_trial_count: auto
sampler: {random: {seed: 7}}
pruner: none
trial:
  cluster: {chief: 1}
  training: {strategy: single}
resources: {cores: 2, memory: 2GB}
"""


def read(folder, text):
    (folder / "study.yaml").write_text(text)
    return read_study(folder / "study.yaml", False)


def mistakes_of(folder, text):
    with pytest.raises(SpecError) as caught:
        read(folder, text)
    return [line.removeprefix(f"{folder}/study.yaml:") for line in str(caught.value).splitlines()]


def test_a_file_says_what_it_says(tmp_path):
    spec, trial = read(tmp_path, GOOD)
    assert spec.metric == {"accuracy": Better.MAXIMIZE}
    assert spec.parallel is None
    assert spec.parameters["optimizer"] == ("sgd", "adam")
    assert spec.resources.nbytes == 2_000_000_000
    assert trial["training"] == {"strategy": "single"}


def test_every_mistake_is_named_with_its_line(tmp_path):
    text = (
        GOOD.replace("min: 1.0e-3", "min: 0")
        .replace("min: 1, max: 300", "min: 300, max: 1")
        .replace("[sgd, adam]", "[sgd, sgd]")
        .replace("2GB", "2 lorries")
        .replace("chief: 1", "chef: 1")
        .replace("seed", "sed")
    )
    lines = mistakes_of(tmp_path, text)
    places = [line.split(": ")[0] + ": " + line.split(": ")[1] for line in lines]
    assert places == [
        "4:10: parameters.rate.min",
        "5:11: parameters.units.min",
        "6:3: parameters.optimizer",
        "9:20: sampler.random.sed",
        "14:23: resources.memory",
        "12:13: trial.cluster.chef",
    ]
    assert "upside down" in lines[1]
    assert "above 0" in lines[0]


def test_mistakes_of_form_come_with_what_was_expected(tmp_path):
    lines = mistakes_of(tmp_path, "name: s\nmetric: {a: up}\nparameters: {x: 3}\nsampler: 4\ntrail: {}\n")
    assert lines[0].startswith('2:10: metric.a: expected maximize or minimize, found "up"')
    assert lines[-1].startswith("5:1: trail: unknown key; did you mean trial")
    assert len(lines) == 4


def test_a_grid_needs_values_that_can_be_counted(tmp_path):
    lines = mistakes_of(tmp_path, GOOD.replace("{random: {seed: 7}}", "grid"))
    assert lines == ["4:3: parameters.rate: a grid needs a `step`, `type: int`, or a list of values"]


def test_the_spec_of_trials_may_be_a_file_with_mistakes_of_its_own(tmp_path):
    (tmp_path / "trial.yaml").write_text("cluster: {chief: 1}\ntraining: {strategy: single}\nreplicas: 3\n")
    begin = GOOD.index("trial:")
    text = GOOD[:begin] + "trial: trial.yaml\n"
    (line,) = mistakes_of(tmp_path, text)
    assert line.startswith(f"{tmp_path}/trial.yaml:3:1: replicas")


def test_only_numbers_of_trials_may_change_when_a_study_goes_on(tmp_path):
    before, _ = read(tmp_path, GOOD)
    more, _ = read(tmp_path, GOOD.replace("max_trial_count: 100", "max_trial_count: 140"))
    other, _ = read(tmp_path, GOOD.replace("max: 10,", "max: 1,").replace("seed: 7", "seed: 8"))
    assert changed(before, more) == []
    assert changed(before, other) == ["parameters", "sampler"]


def test_memory_is_written_as_people_do():
    assert [memory_bytes(each) for each in ("2GB", "512 MiB", 1000, "1.5k", "x", "3 miles")] == [
        2_000_000_000,
        512 << 20,
        1000,
        1500,
        None,
        None,
    ]
