"""A task on a network needs the run's secret, or the word that it may do without; both go their own way."""

import json
import os
import subprocess
import sys

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.errors import SpecError
from dtrain.formats.remote_files import masked
from dtrain.process import private_variables
from dtrain.process.assignment import TaskAssignment, proven_secret
from dtrain.process.tensorflow import write_tf_config
from dtrain.runs.files import JoinRecord
from dtrain.wire.security.credentials import Credentials
from dtrain_cli.plan.run_plan import RunIdentity

NETWORK = ClusterSpec.from_lists(worker=["10.0.0.1:1"], ps=["10.0.0.2:1"])
HERE = ClusterSpec.from_lists(worker=["127.0.0.1:1"], ps=["localhost:1", "[::1]:2"])
SECRET = "the secret of this very run"
PROGRAM = "import dtrain as dt\ndt.get_strategy()\nprint('has a strategy')\n"
FLAGS = ["--ps_hosts=10.0.0.2:1", "--worker_hosts=10.0.0.1:1", "--job_name=worker"]


def run(*command, **variables) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DTRAIN_")}
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment | variables, capture_output=True, text=True
    )


def tf_config(cluster: ClusterSpec) -> str:
    return write_tf_config(cluster, TaskId.parse("worker:0"))


def test_a_command_refuses_a_network_without_a_secret_and_names_its_option(tmp_path):
    program = tmp_path / "train.py"
    program.write_text("print('runs')\n")
    command = ("-m", "dtrain_cli.main", "worker")
    done = run(*command, program, *FLAGS)
    assert done.returncode == 2
    assert "worker:0 is at 10.0.0.1:1, where every process of the network could read" in done.stderr
    assert "`dtrain secret FILE` and give every task the same --secret-file FILE, or say --insecure" in (
        done.stderr
    )
    assert run(*command, "--insecure", program, *FLAGS).stdout == "runs\n"


def test_plain_python_refuses_it_too_and_names_the_variables(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = run(program, TF_CONFIG=tf_config(NETWORK))
    assert done.returncode == 1
    assert 'DTRAIN_SECRET="$(cat FILE)", or say DTRAIN_INSECURE=1 if you trust that network' in done.stderr


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (HERE, {}),
        (NETWORK, {"DTRAIN_INSECURE": "1"}),
        (NETWORK, {"DTRAIN_SPEC": '{"security": {"insecure": true}}'}),
        (NETWORK, {"DTRAIN_SECRET": "0123456789abcdef"}),
    ],
)
def test_who_may_start(cluster, said):
    found = TaskAssignment.from_environment({"TF_CONFIG": tf_config(cluster), **said})
    proven_secret(cluster, found.secret, found.spec.security, by_command=False)


def test_the_secret_file_of_a_spec_holds_for_plain_programs(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef\n")
    spec = json.dumps({"security": {"secret_file": str(secret)}})
    environment = {"TF_CONFIG": tf_config(NETWORK), "DTRAIN_SPEC": spec}
    assert TaskAssignment.from_environment(environment).secret == "0123456789abcdef"
    secret.unlink()
    with pytest.raises(SpecError, match="cannot read the secret"):
        TaskAssignment.from_environment(environment)


def test_a_launch_takes_the_secret_of_its_spec_and_foreign_commands_get_none(launcher, monkeypatch):
    monkeypatch.setenv("DTRAIN_SECRET", "of another run, exported")
    secret = launcher.folder / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef\n")
    print_it = "print(own_environment()['DTRAIN_SECRET'], 'DTRAIN_SECRET' in os.environ)\n"
    program = launcher.program(
        f"status()\nfrom dtrain.process.private_variables import own_environment\n{print_it}"
    )
    own = launcher.start("--ps", "1", "--workers", "0", "--no-evaluator", "--secret-file", secret, program)
    see = "import os; print([name for name in os.environ if 'SECRET' in name or 'PRIVATE' in name])"
    one = ("--ps", "0", "--workers", "1", "--set", "cluster.chief=0", "--secret-file", secret)
    foreign = launcher.start(*one, "--", sys.executable, "-c", see)
    assert own.end() == 0, own.err
    assert own.log("chief:0") == "0123456789abcdef False\n"
    assert foreign.end() == 0, foreign.err
    assert foreign.log("worker:0") == "[]\n"


@pytest.fixture
def nothing_kept(monkeypatch):
    monkeypatch.setattr(private_variables, "_kept", {})


def test_a_secret_leaves_the_environment_when_it_is_read(nothing_kept, monkeypatch):
    monkeypatch.setenv("DTRAIN_SECRET", "s3cret")
    for _ in range(2):
        assert private_variables.own_environment()["DTRAIN_SECRET"] == "s3cret"
        assert "DTRAIN_SECRET" not in os.environ


def test_private_variables_go_by_a_memory_that_is_closed_when_it_is_read(nothing_kept, monkeypatch):
    descriptor = private_variables.handed_over({"DTRAIN_SECRET": "s3cret"})
    monkeypatch.setenv("DTRAIN_PRIVATE_FD", str(descriptor))
    assert private_variables.own_environment()["DTRAIN_SECRET"] == "s3cret"
    assert "DTRAIN_PRIVATE_FD" not in os.environ
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("wrong", ["", "x", "-1", "9" * 30, "1000000"])
def test_another_descriptor_is_refused(nothing_kept, monkeypatch, wrong):
    monkeypatch.setenv("DTRAIN_PRIVATE_FD", wrong)
    with pytest.raises(SpecError, match="DTRAIN_PRIVATE_FD in the environment is not as dtrain sets it"):
        private_variables.own_environment()


@pytest.mark.parametrize("key", ["checkpoint.remote", "checkpoint.every_s", "checkpoint.remot"])
def test_no_error_shows_the_password_of_a_url(key, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("cluster: {worker: 1, ps: 1}\n")
    said = "s3://user:pass@bucket/run"
    done = run("-m", "dtrain_cli.main", "check", "--set", f"{key}={said}", "--set", "name=-", spec)
    assert done.returncode == 2
    assert "user:pass" not in done.stdout + done.stderr


def test_urls_are_shown_without_user_and_password():
    shown = masked('{"remote": "s3://user:p@ss@bucket/run", "other": "https://host/a@b"} ftp://me@x')
    assert shown == '{"remote": "s3://***@bucket/run", "other": "https://host/a@b"} ftp://***@x'


@pytest.mark.parametrize(
    ("address", "said"), [("here", "expected host:port"), ("10.0.0.9:1", "give every task the run's secret")]
)
def test_a_task_that_has_moved_needs_an_address_and_on_a_network_the_secret(address, said):
    environment = {"TF_CONFIG": tf_config(HERE), "DTRAIN_MOVED_TO": address}
    with pytest.raises(SpecError, match=said):
        TaskAssignment.from_environment(environment)


def test_a_task_serves_where_it_has_moved_to():
    environment = {"TF_CONFIG": tf_config(HERE), "DTRAIN_SECRET": "s" * 32, "DTRAIN_MOVED_TO": "10.0.0.9:1"}
    assert TaskAssignment.from_environment(environment).address == "10.0.0.9:1"
    assert TaskAssignment.from_environment({"TF_CONFIG": tf_config(HERE)}).address == "127.0.0.1:1"


def test_no_repr_shows_the_secret(tmp_path):
    cluster = ClusterSpec.from_lists(chief=["127.0.0.1:1"], ps=["127.0.0.1:2"])
    assignment = TaskAssignment.by_hand(cluster, TaskId.parse("ps:0"), {"DTRAIN_SECRET": SECRET})
    assert assignment.secret == SECRET
    credentials = Credentials.made(assignment.hello(), SECRET)
    holders = [assignment, credentials, credentials.keyring, JoinRecord("run", False, {}, SECRET)]
    holders += [RunIdentity("run", tmp_path, SECRET)]
    assert SECRET not in repr(holders)
