"""`dtrain check`, `plan` and `env`: what they say of a spec, of TF_CONFIG and of this machine."""

import json
import subprocess

import pytest
from cli.commands.running import DTRAIN, dtrain


def test_check_says_everything_and_ends_with_2(tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("cluster: {chief: 1, worker: 2, ps: 1}\n")
    bad.write_text("cluster:\n  wrker: 2\nname: 3\n")
    done = dtrain("check", good)
    assert (done.returncode, done.stdout) == (
        0,
        f"{good}: no mistakes; 1 chief, 2 workers, 1 ps; parameter_server, async\n",
    )
    done = dtrain("check", bad)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{bad}:2:3: cluster.wrker: unknown key; did you mean worker?",
        f"{bad}:3:1: name: expected text, found 3",
    ]
    assert dtrain("check", "--set", "training.updates=sync", good).stdout.endswith("sync\n")


@pytest.mark.parametrize(
    ("text", "options", "place", "command"),
    [
        ("worker: 2}", (), "1:1: cluster.ps: training on parameter servers needs at least one ps task", 0),
        (
            "worker: 2, ps: 1}",
            ("--backup-workers", "1"),
            "--backup-workers 1: has no meaning with `updates: async`",
            2,
        ),
        ("worker: 2, ps: 1}\non: ssh", (), " hosts: `on: ssh` needs hosts", 2),
    ],
)
def test_check_and_launch_refuse_the_same(program, text, options, place, command):
    spec = program.parent / "s.yaml"
    spec.write_text(f"cluster: {{chief: 1, {text}\n")
    checked = dtrain("check", *options, spec)
    launched = dtrain("launch", "--runs-dir", program.parent / "runs", *options, spec, program)
    assert (checked.returncode, launched.returncode) == (2, 2)
    assert checked.stderr == launched.stderr
    assert checked.stderr.startswith(place if options else f"{spec}:{place}")
    assert not (program.parent / "runs").exists()
    assert dtrain("check", "--command", *options, spec).returncode == command


def test_check_names_what_has_no_use_and_calls_it_no_mistake(program):
    spec = program.parent / "s.yaml"
    spec.write_text("cluster: {chief: 1, worker: 2, ps: 1}\nhosts: [h1]\n")
    done = dtrain("check", spec)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{spec}: no mistakes; ")
    assert done.stderr == f"dtrain: {spec}:2:1: hosts: not used by `on: local`; did you mean `--on ssh`?\n"


def test_more_replicas_than_reduce_among_themselves_are_refused_before_the_start(program, tmp_path):
    spec = program.parent / "s.yaml"

    def check(workers, *words):
        spec.write_text(
            f"cluster: {{chief: 1, worker: {workers}}}\ntraining: {{strategy: multi_worker_mirrored}}\n"
        )
        return dtrain("check", *words, spec)

    assert check(499).returncode == 0
    assert check(500, "--command").returncode == 0, "any other command reduces by its own means"
    found = check(500)
    assert found.stderr == (
        f"{spec}:2:12: training.strategy: in multi_worker_mirrored at most 500 chiefs and workers train, found 501: "
        "take away 1, or train with strategy: parameter_server\n"
    )
    planned, launched = (
        dtrain(word, "--runs-dir", tmp_path / "runs", spec, program) for word in ("plan", "launch")
    )
    assert [done.returncode for done in (found, planned, launched)] == [2, 2, 2]
    assert found.stderr == planned.stderr == launched.stderr
    assert not (tmp_path / "runs").exists()


def test_check_reads_the_tf_config_of_the_environment():
    right = {
        "cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]},
        "task": {"type": "worker", "index": 0},
    }
    done = dtrain("check", "-", environment={"TF_CONFIG": json.dumps(right)})
    assert (done.returncode, done.stdout) == (
        0,
        "TF_CONFIG: no mistakes; this is worker:0 of 1 chief, 1 worker, 1 ps\n",
    )
    done = dtrain("check", "-", environment={"TF_CONFIG": "{"})
    assert done.returncode == 2
    assert "TF_CONFIG" in done.stderr


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"cluster": {"worker": ["a:2222"], "ps": ["b:1"]}},
            "TF_CONFIG names a cluster but no task; expected",
        ),
        ({"task": {"type": "worker", "index": 0}}, 'TF_CONFIG names no "cluster"; expected'),
    ],
)
def test_check_and_the_role_commands_refuse_the_same_tf_config(program, config, said):
    environment = {"TF_CONFIG": json.dumps(config)}
    checked, started = (
        dtrain(*words, environment=environment) for words in (["check", "-"], ["worker", program])
    )
    assert (checked.returncode, started.returncode) == (2, 2)
    assert checked.stderr.startswith(said)
    assert checked.stderr == started.stderr


def test_check_knows_that_a_tf_config_without_servers_is_no_cluster_of_ours(program):
    config = {"cluster": {"worker": ["a:2222"]}, "task": {"type": "worker", "index": 0}}
    environment = {"TF_CONFIG": json.dumps(config)}
    assert "needs at least one ps task" in dtrain("check", "-", environment=environment).stderr
    for words in (
        ("--command",),
        ("--strategy", "multi_worker_mirrored"),
        ("--set", "training.strategy=single"),
    ):
        done = dtrain("check", *words, "-", environment=environment)
        assert done.stdout == "TF_CONFIG: no mistakes; this is worker:0 of 1 worker\n"
    refused = dtrain(
        "check", "--strategy", "multi_worker_mirrored", "--backup-workers", "7", "-", environment=environment
    )
    assert refused.returncode == 2
    assert "of 1 replicas at most 0 can be backups, found 7" in refused.stderr


def test_plan_prints_json_without_a_secret(program, tmp_path):
    done = dtrain(
        "plan", "--json", "--no-evaluator", "--workers", "3", "--runs-dir", tmp_path, program, "--lr", "1"
    )
    plan = json.loads(done.stdout)
    assert plan["addresses"] == "example"
    assert [task["task"] for task in plan["tasks"]] == [
        "ps:0",
        "ps:1",
        "chief:0",
        "worker:0",
        "worker:1",
        "worker:2",
    ]
    assert plan["tasks"][0]["command"][1:] == ["-m", "dtrain.task", str(program), "--lr", "1"]
    assert "DTRAIN_SECRET" not in plan["tasks"][0]["environment"]
    assert len({task["address"] for task in plan["tasks"]}) == 6
    assert list(tmp_path.iterdir()) == [program]


def test_plan_for_people_can_be_pasted_into_a_shell(program, tmp_path):
    done = dtrain("plan", "--runs-dir", tmp_path, "--ps", "1", "--", "sh", "-c", "echo $TF_CONFIG")
    assert "addresses are examples" in done.stdout
    assert "command  sh -c 'echo $TF_CONFIG'" in done.stdout
    assert "TF_CONFIG='{" in done.stdout
    assert "evaluator:0" not in done.stdout


def test_plan_says_what_local_steps_send(program, tmp_path):
    said = dtrain("plan", "--runs-dir", tmp_path, "--local-steps", "20", program).stdout
    assert "once in 20 of its steps: 1/20 of the bytes of a push for every step" in said
    assert "at 10 steps a second, 5 MB/s each way instead of 100" in said
    fewer = ("--set", "training.compression=bf16")
    said = dtrain("plan", "--runs-dir", tmp_path, "--local-steps", "by_speed:20", *fewer, program).stdout
    assert "2.5 MB/s each way instead of 50" in said
    assert "local steps" not in dtrain("plan", "--runs-dir", tmp_path, program).stdout


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (("--updates", "async"), "--local-steps by_speed:4: with updates: async a slow replica"),
        (("--backup-workers", "1"), "--local-steps by_speed:4: by_speed shares a round among all replicas"),
        (("--set", "training.deterministic=true"), "how fast replicas are is chance"),
    ],
)
def test_local_steps_by_speed_are_refused_where_they_cannot_be(beside, said, program, tmp_path):
    done = dtrain("plan", "--runs-dir", tmp_path, "--local-steps", "by_speed:4", *beside, program)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_plan_of_other_machines_is_shown_without_touching_them(program, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("cluster: {chief: [machine-a:2222], ps: [machine-b:2222]}\n")
    shown = dtrain("plan", spec, program).stdout
    assert f"machine-a\n  dtrain chief --spec {spec} --index 0 {program}\n" in shown
    assert f"machine-b\n  dtrain ps --spec {spec} --index 0\n" in shown


def test_a_closed_pipe_is_silence(program):
    for command in (["plan", "--workers", "200", "--json", program], ["env"], ["--help"]):
        with subprocess.Popen(
            [*DTRAIN, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


def test_env_tells_what_a_launch_would_choose():
    facts = json.loads(
        dtrain("env", "--json", environment={"DTRAIN_SECRET": "s3cret", "DTRAIN_RUNS_DIR": "/runs"}).stdout
    )
    assert facts["a_launch_would_choose"]["cluster"] == "1 chief, 2 workers, 2 ps, 1 evaluator"
    assert facts["a_launch_would_choose"]["runs_dir"] == "/runs"
    assert facts["environment"] == {**facts["environment"], "DTRAIN_SECRET": "***"}
    assert facts["versions"]["numpy"]
    assert "open files" in dtrain("env").stdout.replace("_", " ")
