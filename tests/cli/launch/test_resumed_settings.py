"""The settings of a run that goes on: its own where no SPEC is named, and what differs from them in a line."""

import json

import pytest
from msgspec.structs import replace

from dtrain.errors import SpecError
from dtrain.runs.files import RunFiles, RunRecord, write_record
from dtrain_cli.launch.engines import engine_of
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import other_settings, read_request, with_settings_of_run

SHOP = """
name: shop
on: ssh
cluster: {chief: 1, worker: 3, ps: 2, evaluator: 1}
training: {updates: sync, backup_workers: 1, partitioner: {fixed_shards: 2}, compression: bf16}
wait: {start_s: 30}
checkpoint: {every_s: null, every_steps: 7}
restart: {worker: {max: 7}}
environment: {A: "1"}
hosts: [h1, {host: h2, slots: 9, address: 10.0.0.2}, {host: h3, spare: true}]
place: {ps: spread, worker: [h1, h2]}
code: {from: ., exclude: [data/]}
slurm: {nodes: 2, time: 7, options: [--mem=1G]}
kubernetes: {image: i, resources: {ps: {cpu: 500m}}}
simulate: {slow: {"worker:1": 8}, kill: [{task: "worker:0", at_s: [1, 2]}],
  network: [{between: ["worker:0", "ps:1"], latency_ms: 2}]}
"""


@pytest.fixture
def run(tmp_path):
    """Return a run of SHOP, as its launch has recorded it, and the options that resume it."""
    (tmp_path / "shop.yaml").write_text(SHOP)
    files = RunFiles(tmp_path / "runs" / "r1")
    files.create()
    options = LaunchOptions(
        spec=tmp_path / "shop.yaml", program=tmp_path / "p.py", runs_dir=tmp_path / "runs"
    )
    _, spec = read_request(options, {})
    write_record(files.spec, spec)
    write_record(files.run, RunRecord("r1", "shop"))
    return files, spec, replace(options, spec=None, resume="shop")


def test_without_a_spec_a_run_goes_on_with_its_own_settings(run):
    files, spec, options = run
    going_on = with_settings_of_run(options)
    assert engine_of(going_on) == "ssh"
    _, again = read_request(going_on, {})
    assert again == spec
    assert again.said["training"] == spec.said["training"]
    assert other_settings(files, again, foreign=False) is None
    by_name = replace(options, resume="", shortcuts={"name": "shop"})
    in_a_folder = replace(options, resume="", run_dir=files.directory)
    for each in (by_name, in_a_folder):
        assert read_request(with_settings_of_run(each), {})[1] == spec


def test_what_a_program_has_wished_is_not_taken_for_the_user_s_word(run):
    files, _, options = run
    written = json.loads(files.spec.read_bytes())
    files.spec.write_text(json.dumps(written | {"training": written["training"] | {"seed": 9}}))
    _, again = read_request(with_settings_of_run(options), {})
    assert again.training.seed == 0
    assert "seed" not in again.said["training"]


def test_options_come_on_top_and_what_differs_is_told(run):
    files, _, options = run
    sets = ("training.updates=async", "training.backup_workers=0", "wait.start_s=40", "environment={A: x}")
    given = replace(options, sets=sets, shortcuts={"workers": 2})
    _, spec = read_request(with_settings_of_run(given), {})
    assert other_settings(files, spec, foreign=False) == (
        "worker 3 -> 2, updates sync -> async, wait.start_s 30.0 -> 40.0, environment.A 1 -> x"
    )


FAULTS = """
simulate: {slow: {"worker:2": 8, "worker:0": 2}, kill: [{task: "worker:2", at_s: 1}, {task: "ps:1", at_step: 3},
  {task: "worker:0", at_s: 2}], network: [{between: ["chief:0", "ps:1"], latency_ms: 2}]}
"""


@pytest.mark.parametrize(
    ("shortcuts", "out", "there"),
    [
        (
            {"workers": 2},
            {"simulate.slow.worker:2", "simulate.kill.0"},
            {"slow": {"worker:0": 2.0}, "kill": ["ps:1", "worker:0"], "network": 1},
        ),
        (
            {"workers": 1, "ps": 1},
            {"simulate.slow.worker:2", "simulate.kill.0", "simulate.kill.1", "simulate.network.0"},
            {"slow": {"worker:0": 2.0}, "kill": ["worker:0"], "network": 0},
        ),
    ],
)
def test_kept_faults_of_tasks_that_the_options_take_away_are_left_out_and_told(
    run, capfd, shortcuts, out, there
):
    files, _, options = run
    local = SHOP.partition("hosts:")[0].replace("on: ssh", "on: local") + FAULTS
    _resumable(files, options, local)
    _, spec = read_request(with_settings_of_run(replace(options, shortcuts=shortcuts)), {})
    assert dict(spec.simulate.slow) == there["slow"]
    assert [fault.task for fault in spec.simulate.kill] == there["kill"]
    assert len(spec.simulate.network) == there["network"]
    told = capfd.readouterr().err
    assert {line.split()[4] for line in told.splitlines() if "leaving out" in line} == out
    assert "the cluster has no worker:2" in told


def test_kept_settings_without_meaning_in_the_strategy_of_the_options_are_left_out_and_told(run, capfd):
    files, _, options = run
    stale = "{updates: async, stale_gradients: drop, max_staleness: 1, on_stale: retry_same_batch, seed: 3}"
    _resumable(files, options, f"{{name: shop, cluster: {{chief: 1, worker: 2, ps: 3}}, training: {stale}}}")
    _, spec = read_request(with_settings_of_run(replace(options, shortcuts={"strategy": "single"})), {})
    assert (spec.training.strategy, spec.training.seed) == ("single", 3)
    told = capfd.readouterr().err
    for name in ("stale_gradients", "max_staleness", "on_stale"):
        assert f"leaving out training.{name} of the run's settings: " in told
    mirrored = replace(options, shortcuts={"strategy": "multi_worker_mirrored"})
    _, spec = read_request(with_settings_of_run(mirrored), {})
    assert (spec.cluster.count("ps"), spec.cluster.count("worker")) == (0, 2)
    assert (
        "leaving out cluster.ps of the run's settings: multi_worker_mirrored trains" in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("shortcuts", "sets", "wrong"),
    [
        ({"strategy": "mirrored"}, (), "cluster.worker"),
        ({"workers": 1}, ("simulate.slow.worker:2=8",), "--set simulate.slow.worker:2=8: the cluster has no"),
        ({"workers": 1, "backup_workers": 7}, (), "--backup-workers 7: "),
        ({"ps": 0}, (), "--ps 0: "),
    ],
)
def test_what_the_options_say_wrongly_stays_a_mistake_beside_kept_settings(run, shortcuts, sets, wrong):
    files, _, options = run
    _resumable(
        files, options, "{name: shop, cluster: {chief: 1, worker: 3, ps: 2}, training: {updates: sync}}"
    )
    given = replace(options, shortcuts=shortcuts, sets=sets)
    with pytest.raises(SpecError) as caught:
        read_request(with_settings_of_run(given), {})
    assert wrong in str(caught.value)


def _resumable(files, options, text):
    """Make the run of `files` one that was launched with the spec `text`."""
    path = files.directory / "kept.yaml"
    path.write_text(text)
    write_record(files.spec, read_request(replace(options, spec=path, resume=None), {})[1])


def test_so_is_what_another_spec_says(run, tmp_path):
    files, _, options = run
    (tmp_path / "other.yaml").write_text(
        SHOP.replace("worker: 3", "worker: 4").replace("{every_s: null, ", "{")
    )
    _, spec = read_request(replace(options, spec=tmp_path / "other.yaml"), {})
    assert other_settings(files, spec, foreign=False) == "worker 3 -> 4, checkpoint.every_s null -> 30.0"


WRONG_RULE = {"cluster": {"chief": 1}, "said": {}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "the settings of the run are gone: there is no {file}"),
        ('{"x', "{file} is damaged"),
        ('{"said": 5}', "{file} is damaged"),
        ('{"said": {"training": 5}}', "{file}: training: expected a mapping of keys to values, found 5"),
        (json.dumps(WRONG_RULE), "{file}: cluster.ps: training on parameter servers needs at least one ps"),
        (
            '{"said": {}, "checkpoint": {"remote": "s3://***@b/x"}}',
            "{file} does not keep the user and password",
        ),
    ],
)
def test_settings_that_cannot_be_had_are_asked_for(run, content, reason):
    files, spec, options = run
    files.spec.unlink() if content is None else files.spec.write_text(content)
    with pytest.raises(SpecError) as caught:
        with_settings_of_run(options)
    assert str(caught.value).startswith(f"--resume: {reason.format(file=files.spec)}")
    assert str(caught.value).endswith("; name a SPEC beside --resume")
    assert other_settings(files, spec, foreign=False) is None, "with a SPEC they are not needed"
