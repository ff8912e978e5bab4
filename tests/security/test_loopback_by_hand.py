"""Clusters on loopback that are started by hand without a secret: their user gets in, and nobody else."""

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from clusters.hand import HandCluster
from clusters.watching import PACED
from launching import SOURCES, free_port
from security import reaching
from security.reaching import HELLO, LET_IN, SERVER

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import SecuritySection
from dtrain.errors import SpecError
from dtrain.process import secret
from dtrain.process.assignment import TaskAssignment, proven_secret
from dtrain.process.secret import is_random, users_secret, write_secret
from dtrain.process.tensorflow import write_tf_config
from dtrain.runs.self_report import exposure
from dtrain.wire.channel import Answer
from dtrain.wire.frames import Limits
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.handshake import refusal
from dtrain.wire.one_host.local import LocalService
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.security.proof import STRANGER
from dtrain.wire.streams import Listener
from dtrain_cli.launch.join import joining_address
from dtrain_cli.plan.standalone_start import StandaloneStart

OTHER_USER = 54242
HERE = {"chief": ["127.0.0.1:2001"], "ps": ["localhost:2002", "[::1]:2003"]}
CLUSTER = ClusterSpec.from_lists(**HERE)
as_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The state folder of this test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def file(home):
    """Where the secret of the user is, who has none yet."""
    path = home / "dtrain" / "loopback" / "secret"
    path.parent.mkdir(0o700, parents=True)
    return path


def refused():
    with pytest.raises(SpecError) as error:
        users_secret()
    assert "dtrain1-" not in str(error.value)
    return str(error.value)


# The secret of a user


def test_the_first_start_makes_a_secret_for_this_user_alone_and_the_next_finds_it(home):
    made = users_secret()
    assert is_random(made), "so that its key takes microseconds"
    folder = home / "dtrain" / "loopback"
    assert [each.name for each in folder.iterdir()] == ["secret"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert users_secret() == made


def test_tasks_that_start_at_the_same_time_agree_on_one_secret(home):
    begin = threading.Barrier(32)

    def start(_):
        begin.wait(60)
        return users_secret()

    with ThreadPoolExecutor(32) as tasks:
        assert len(set(tasks.map(start, range(32)))) == 1
    assert [each.name for each in (home / "dtrain" / "loopback").iterdir()] == ["secret"]


def test_a_task_that_was_slower_takes_the_secret_of_the_faster_one(file, monkeypatch):
    link = os.link

    def late(whole, path):
        write_secret(path)
        link(whole, path)

    monkeypatch.setattr(os, "link", late)
    found = users_secret()
    assert file.read_text() == f"{found}\n"
    assert list(file.parent.iterdir()) == [file]


def test_a_task_that_dies_while_it_makes_the_secret_leaves_none_that_is_half(file, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(secret, "new_secret", die)
        with contextlib.suppress(Killed):
            users_secret()
    assert not file.exists()
    assert is_random(users_secret())


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "found an empty file"), (f"dtrain1-{'ab' * 16}", "found something else; remove it")],
)
def test_half_a_secret_is_not_believed(file, content, said):
    file.touch(0o600)
    file.write_text(content)
    assert refused().startswith(f"{file}: expected ")
    assert said in refused()


def test_a_link_is_not_followed(file, tmp_path):
    write_secret(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert refused() == f"{file}: expected a file with the secret of this user, found a link; remove it"
    file.unlink()
    file.symlink_to(tmp_path / "nowhere")
    assert "found a link" in refused()
    assert not (tmp_path / "nowhere").exists()
    file.unlink()
    file.parent.rmdir()
    (tmp_path / "folder").mkdir(0o700)
    file.parent.symlink_to(tmp_path / "folder")
    assert refused().startswith(f"{file.parent}: expected a folder, no link, ")
    assert list((tmp_path / "folder").iterdir()) == []


def test_what_others_may_read_or_replace_is_refused(file):
    users_secret()
    file.chmod(0o640)
    assert "others can read the secret (mode 0640)" in refused()
    file.chmod(0o600)
    for mode in (0o755, 0o770, 0o701):
        file.parent.chmod(mode)
        assert refused().endswith("that belongs to you and has mode 0700")


@as_root
def test_what_belongs_to_another_user_is_refused(file):
    users_secret()
    os.chown(file, OTHER_USER, OTHER_USER)
    assert "belongs to another user (id 54242)" in refused()
    os.chown(file.parent, OTHER_USER, OTHER_USER)
    assert refused().startswith(f"{file.parent}: expected a folder, no link, that belongs to you")


def test_the_runtime_folder_is_taken_where_no_state_can_be_kept_and_else_the_remedy_is_named(
    home, tmp_path, monkeypatch
):
    home.touch()
    assert refused() == (
        f"{home}/dtrain/loopback: Not a directory: the secret cannot be kept that tasks on loopback prove if "
        "they are given none; make one with `dtrain secret FILE` and give every task the same --secret-file "
        "FILE or DTRAIN_SECRET"
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = users_secret()
    assert (tmp_path / "dtrain" / "secret").read_text() == f"{found}\n"
    assert stat.S_IMODE((tmp_path / "dtrain").stat().st_mode) == 0o700
    home.unlink()
    assert users_secret() != found


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert refused().startswith("this user has neither a home nor an XDG_RUNTIME_DIR: the secret cannot")


# Which task proves what


@pytest.mark.parametrize(
    ("jobs", "given", "insecure", "proven"),
    [
        (HERE, None, False, "the user's"),
        (HERE, "0123456789abcdef", False, "0123456789abcdef"),
        (HERE, None, True, None),
        ({"chief": ["127.0.0.1:2001"]}, None, False, None),
    ],
    ids=["by default", "given", "insecure", "alone"],
)
def test_what_a_task_on_loopback_proves(home, jobs, given, insecure, proven):
    cluster, security = ClusterSpec.from_lists(**jobs), SecuritySection(insecure=insecure)
    found = proven_secret(cluster, given, security, by_command=True)
    assert home.exists() == (proven == "the user's"), "a secret is made only where it is needed"
    assert found == (users_secret() if proven == "the user's" else proven)


@pytest.mark.parametrize("way", ["TF_CONFIG", "other order", "spec", "flags", "evaluator", "engine"])
def test_however_a_cluster_is_spelled_its_tasks_find_one_secret(home, tmp_path, way):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"cluster": HERE}))
    other_order = {"task": {"index": 1, "type": "ps"}, "cluster": dict(reversed(HERE.items()))}
    flags = (f"--ps_hosts={','.join(HERE['ps'])}", "--worker_hosts=127.0.0.1:2001")
    start, environment = {
        "TF_CONFIG": (StandaloneStart(Role.PS), write_tf_config(CLUSTER, TaskId(Role.PS, 1))),
        "other order": (StandaloneStart(Role.PS), json.dumps(other_order)),
        "spec": (StandaloneStart(Role.PS, 0, spec), None),
        "flags": (StandaloneStart(Role.WORKER, 0, flags=flags), None),
        "evaluator": (
            StandaloneStart(Role.EVALUATOR),
            write_tf_config(CLUSTER, TaskId(Role.EVALUATOR, 0)),
        ),
        "engine": (StandaloneStart(None), write_tf_config(CLUSTER, TaskId(Role.CHIEF, 0))),
    }[way]
    found = start.assignment({"TF_CONFIG": environment} if environment else {})
    assert found.secret == users_secret()
    assert found.secret not in repr(found) + json.dumps(found.to_environment("{}"))


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"DTRAIN_SECRET": "s" * 20}, "tasks prove the secret; no other user of this machine has it, unless"),
        (
            {"DTRAIN_INSECURE": "1"},
            "warning: without a secret every user of this machine may read and change",
        ),
    ],
)
def test_each_task_says_what_keeps_other_users_out(said, line):
    assignment = TaskAssignment.by_hand(CLUSTER, TaskId(Role.PS, 0), said)
    assert exposure(assignment, encrypted=False).startswith(line)
    alone = ClusterSpec.from_lists(chief=["127.0.0.1:2001"])
    assert exposure(TaskAssignment.by_hand(alone, TaskId(Role.CHIEF, 0), {}), encrypted=False) is None


# Other users


class Welcoming:
    """A handler that lets in every task that has the secret."""

    answers_at_once = True

    def limits(self, hello):
        return Limits(1 << 20, 1 << 20)

    def refuse(self, hello):
        return refusal(HELLO, hello)

    def received(self, caller, frame):
        return Answer.ONE

    def disconnected(self, caller):
        pass


def tried_by_two_users(ways):
    """What each way told this user, and another one: by the secret with which it tried."""
    process = subprocess.run(
        [sys.executable, reaching.__file__, str(OTHER_USER)],
        input=json.dumps(ways),
        env={**os.environ, "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@as_root
def test_this_user_gets_in_and_another_user_does_not_by_any_way(home):
    own = Credentials.made(
        msgspec.structs.replace(HELLO, task=SERVER),
        proven_secret(CLUSTER, None, SecuritySection(), by_command=True),
    )
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        local = LocalService(Welcoming(), own)
        stack.callback(local.stop)
        service = GrpcService(
            Welcoming(), address, own, connections=8, share_port=False, local_name=local.name
        )
        stack.callback(service.stop)
        listener = Listener("127.0.0.1:9", own, Welcoming().refuse, 8)
        stack.callback(listener.stop)
        told = tried_by_two_users({"grpc": address, "socket": local.name(), "stream": listener.address})
    assert told.pop("same user") == dict.fromkeys(("grpc", "socket", "stream"), LET_IN)
    place = told.pop("the user's place")
    assert place.startswith(f"{home}/dtrain/loopback: Permission denied: the secret cannot be kept")
    assert set(told) == {"no secret", "own secret"}
    for ways in told.values():
        assert ways["socket"] != LET_IN
        assert ways["grpc"].endswith(STRANGER)
        assert ways["stream"].endswith(STRANGER)
        assert HELLO.run_id not in "".join(ways.values())


@as_root
def test_tasks_by_hand_train_together_without_a_given_secret_and_another_user_learns_nothing(launcher, home):
    cluster = HandCluster(launcher, ps=1, chief=1)
    address = cluster.addresses["ps"][0]
    words = (PACED, "--steps", "20", "--wait_for", "go", "--after", "5")
    server = cluster.start("ps:0", environment={"TF_CONFIG": cluster.tf_config("ps:0")})
    chief = cluster.start_python("chief:0", *words, environment={"TF_CONFIG": cluster.tf_config("chief:0")})
    told = tried_by_two_users({"join": address})
    joining = joining_address(address, {}, {}, launcher.folder / "runs")
    (launcher.folder / "go").touch()
    cluster.succeed()
    assert joining.assignment.secret == users_secret()
    assert told["same user"] == {"join": LET_IN}
    for secret_of in ("no secret", "own secret"):
        assert told[secret_of] == {"join": f"the server at {address}: {STRANGER}"}
    for task, command in cluster.commands.items():
        said = f"dtrain: {task}: tasks prove the secret; no other user of this machine has it, unless "
        assert [line.startswith(said) for line in command.err.splitlines()[:2]] == [False, True]
    assert users_secret() not in server.err + server.out + chief.err + chief.out
