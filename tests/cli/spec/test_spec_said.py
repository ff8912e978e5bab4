"""Which keys a user said, whatever their values; `null` and `none` are the same; what `deterministic` goes
with.
"""

import msgspec
import pytest

from dtrain.config import ROLES, RunSpec, SyncSection
from dtrain.errors import SpecError
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.spec import read_spec

CLUSTER = "cluster: {chief: 1, worker: 2, ps: 1}\n"


@pytest.fixture
def spec(tmp_path):
    def write(text, name="spec.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def mistakes(source, *sets, **shortcuts):
    with pytest.raises(SpecError) as caught:
        read_spec(source, sets, shortcuts)
    return str(caught.value).replace(f"{source}:", "spec:").splitlines()


def test_a_key_was_said_by_the_spec_a_shortcut_or_set_whatever_its_value(spec):
    path = spec(f"{CLUSTER}training: {{seed: 0, staleness_bound: null}}\ncheckpoint: null\n")
    said = read_spec(path, ["training.nan_policy=refuse"], {"updates": "async", "name": "run"}).said
    assert said == {
        "name": "run",
        "training": {"nan_policy": "refuse", "seed": 0, "staleness_bound": None, "updates": "async"},
    }


def test_a_shortcut_alone_is_said_too():
    assert read_spec(None, (), {"updates": "async"}).said == {"training": {"updates": "async"}}
    assert read_spec(None).said == {}


def test_a_bound_of_zero_says_all_that_it_means():
    spec = read_spec(None, (), {"staleness_bound": 0})
    assert spec.said == {"training": {"updates": "sync", "backup_workers": 0, "staleness_bound": 0}}
    assert isinstance(spec.training, SyncSection)


def test_a_spec_cannot_write_what_was_said(spec):
    (line,) = mistakes(spec(f"{CLUSTER}said: [training.seed]\n"))
    assert line.startswith("spec:2:1: said: unknown key; did you mean ")
    assert "said" not in line.partition("expected")[2]


def test_a_name_that_was_said_stays(tmp_path):
    workload = Workload(tmp_path / "prog.py", (), tmp_path)
    assert workload.named(read_spec(None, (), {"name": "run"})).name == "run"
    assert workload.named(read_spec(None)).name == "prog"


def test_a_restart_rule_keeps_what_was_not_said_of_its_role(spec):
    path = spec(f"{CLUSTER}restart: {{chief: {{backoff_s: 2}}, worker: {{backoff_s: 2}}, ps: {{max: 3}}}}\n")
    rules = read_spec(path, ["restart.evaluator.policy=always"])
    assert {role: rules.restart_of(role).max for role in ROLES} == {
        "chief": 1,
        "worker": 3,
        "ps": 3,
        "evaluator": 3,
    }
    assert rules.restart_of("chief").backoff_s == 2
    assert read_spec(path, ["restart.chief.max=3"]).restart_of("chief").max == 3


NONES = """
training: {staleness_bound: none, partitioner: none, max_staleness: None, compression: null, replicas_to_aggregate: null}
checkpoint: {every_s: none, every_steps: NONE, remote: none}
simulate: none
security: {secret_file: none, ca_file: none}
"""


def test_null_and_none_are_the_same(spec):
    found = read_spec(spec(CLUSTER + NONES), ["restart=none", "training.max_staleness=none"])
    expected = read_spec(spec(CLUSTER), ["checkpoint.every_s=null"])
    assert msgspec.structs.replace(found, said={}) == msgspec.structs.replace(expected, said={})
    assert found.training.compression == "none"
    toml = read_spec(spec('[cluster]\nworker = 1\nps = 1\n[checkpoint]\nevery_s = "none"\n', "spec.toml"))
    assert toml.checkpoint.every_s is None


def test_a_section_that_is_none_can_be_given_a_key(spec):
    assert read_spec(spec(f"{CLUSTER}training: none\n"), ["training.seed=3"]).training.seed == 3


def test_none_is_no_value_where_something_is_needed(spec):
    assert mistakes(spec(f"name: none\n{CLUSTER}training: {{updates: none, seed: none}}\n")) == [
        'spec:3:12: training.updates: expected sync or async, found "none"',
        'spec:3:27: training.seed: expected a whole number, found "none"',
    ]


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        ("updates: async", "each gradient is an update by itself, as it arrives"),
        ("staleness_bound: 3", "each gradient is an update by itself, as it arrives"),
        ("updates: sync, backup_workers: 1", "which replicas are late is chance"),
        ("updates: sync, replicas_to_aggregate: 2", "which 2 of 3 replicas come first is chance"),
    ],
)
def test_deterministic_is_refused_where_chance_decides(spec, beside, reason):
    (line,) = mistakes(spec(f"{CLUSTER}training: {{deterministic: true, {beside}}}\n"))
    assert line.startswith("spec:2:12: training.deterministic: ")
    assert reason in line


@pytest.mark.parametrize("beside", ["updates: async", "updates: async, staleness_bound: 3"])
def test_weighting_by_examples_is_refused_where_no_mean_is_taken(spec, beside):
    (line,) = mistakes(spec(f"{CLUSTER}training: {{weighting: examples, {beside}}}\n"))
    assert line.startswith(
        "spec:2:12: training.weighting: has no meaning with `updates: async`: each gradient"
    )


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("deterministic: true", "each gradient is an update by itself, as it arrives"),
        ("weighting: examples", "each gradient is an update by itself"),
        ("backup_workers: 1", "each gradient is an update by itself"),
        ("stale_gradients: drop", "drop needs max_staleness"),
        ("strategy: single, weighting: examples", "one process has one replica"),
    ],
)
def test_what_makes_no_sense_by_itself_is_refused_whatever_a_program_might_add(spec, said, reason):
    path = spec(f"{CLUSTER}training: {{{said}}}\n")
    (line,) = mistakes(path)
    place, key, text = line.split(": ", 2)
    assert place == "spec:2:12" or said.startswith("strategy")
    assert f"{key.removeprefix('training.')}: " in said
    assert reason in text
    with pytest.raises(SpecError, match=reason):
        read_spec(path, foreign=True)


@pytest.mark.parametrize("beside", ["updates: sync", "staleness_bound: 0", "strategy: mirrored"])
def test_weighting_by_examples_goes_with_steps_of_all(spec, beside):
    assert isinstance(read_spec(spec(f"{CLUSTER}training: {{weighting: examples, {beside}}}\n")), RunSpec)


def test_a_cluster_that_cannot_be_read_makes_no_second_mistake(spec):
    path = spec(
        "cluster: {worker: q}\ntraining: {deterministic: true, updates: sync, replicas_to_aggregate: 2}\n"
    )
    (line,) = mistakes(path)
    assert line.startswith("spec:1:11: cluster.worker: expected a count")


@pytest.mark.parametrize(
    "beside",
    ["updates: sync", "staleness_bound: 0", "updates: sync, replicas_to_aggregate: 4", "strategy: single"],
)
def test_deterministic_goes_with_all_contributions(spec, beside):
    assert isinstance(read_spec(spec(f"{CLUSTER}training: {{deterministic: true, {beside}}}\n")), RunSpec)
