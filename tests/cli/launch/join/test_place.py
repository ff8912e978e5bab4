"""The place of a worker that joins at an address: what is refused before it asks, and what follows from the answer."""

import os
import socket

import pytest
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec
from dtrain.config import RunSpec, SecuritySection, WaitSection
from dtrain.config.choices import TlsMode
from dtrain.errors import PeerRefusedError, RunError, SpecError
from dtrain.messages import JoinPlace
from dtrain.process.life_line import started_s
from dtrain.process.requests import encode_join_message
from dtrain.runs.files import JoinRecord, RunFiles, RunRecord, offer_to_join, write_record
from dtrain.runs.states import RunState
from dtrain_cli.commands.roles import is_address
from dtrain_cli.launch import join
from dtrain_cli.launch.join import joining_address, joining_run
from dtrain_cli.runs.index import KnownRun

SECRET = {"DTRAIN_SECRET": "s" * 16}
SERVERS = ClusterSpec.from_lists(
    chief=["127.0.0.1:1"], worker=["127.0.0.1:2"], ps=["127.0.0.1:3", "127.0.0.1:4"]
)


@pytest.fixture
def answers(monkeypatch):
    """The places that servers give, in turn; filled by a test. What they were asked is in `asked`."""

    class Answers(list):
        def __init__(self):
            self.asked = []

    given = Answers()

    def answer(request):
        given.asked.append(request)
        return given.pop(0)

    monkeypatch.setattr(join, "_asked", answer)
    return given


def place(index=2, cluster=SERVERS, launched=True):
    spec = RunSpec(name="digits", security=SecuritySection(tls=TlsMode.OFF))
    return JoinPlace(run_id="r-1", launched=launched, cluster=cluster.to_dict(), spec=spec, index=index)


@pytest.mark.parametrize("text", ["a:1", "[::1]:2222", "127.0.0.1:3", "a:", ":1"])
def test_a_colon_makes_an_address(text):
    assert is_address(text)


@pytest.mark.parametrize("text", ["digits", "20261122-1-digits-ab", "./runs/a:1", "/tmp/a:1"])
def test_names_ids_and_paths_are_runs(text):
    assert not is_address(text)


@pytest.mark.parametrize("address", ["a:", ":1", "a:99999", "a:x"])
def test_a_malformed_address_is_said(address, tmp_path, answers):
    with pytest.raises(
        SpecError, match=f"^--join {address}: .*; or give the name or id of a run on this machine$"
    ):
        joining_address(address, SECRET, {}, tmp_path)


def test_on_a_network_there_is_a_secret_or_the_word_that_there_is_none(tmp_path, answers):
    with pytest.raises(
        SpecError, match="no secret: give the run's own by --secret-file FILE, or say --insecure"
    ):
        joining_address("10.0.0.1:1", {}, {}, tmp_path)
    assert answers.asked == []
    network = ClusterSpec.from_lists(chief=["10.0.0.1:2"], ps=["10.0.0.1:1"])
    answers += [place(cluster=network)] * 2
    assert joining_address("10.0.0.1:1", {}, {"insecure": True}, tmp_path).assignment.spec.security.insecure
    assert joining_address("10.0.0.1:1", SECRET, {}, tmp_path).assignment.secret == "s" * 16


def test_the_assignment_is_the_runs_with_a_folder_of_its_own(tmp_path, answers):
    answers += [place()]
    found = joining_address("127.0.0.1:3", SECRET, {}, tmp_path)
    given = found.assignment
    assert (str(given.task), given.cluster, given.run_id, given.launched) == (
        "worker:2",
        SERVERS,
        "r-1",
        True,
    )
    assert (given.spec.name, given.spec.security.tls, given.joined) == ("digits", TlsMode.OFF, True)
    assert (found.run, found.keeper) == ("r-1", None)
    assert given.run_dir.parent == tmp_path
    assert given.run_dir.stat().st_mode & 0o777 == 0o700


def test_the_control_host_is_asked_where_another_server_gives_no_index(tmp_path, answers):
    answers += [place(index=-1), place(index=5)]
    assert str(joining_address("127.0.0.1:4", SECRET, {}, tmp_path).assignment.task) == "worker:5"
    assert [(request.server, request.address) for request in answers.asked] == [
        ("the server", "127.0.0.1:4"),
        ("ps:0", "127.0.0.1:3"),
    ]


def test_an_index_of_the_clusters_own_is_not_taken(tmp_path, answers):
    answers += [place(index=0)]
    with pytest.raises(PeerRefusedError, match="gives a worker no index"):
        joining_address("127.0.0.1:3", SECRET, {}, tmp_path)


def test_servers_at_loopback_addresses_of_another_machine_are_said_to_be_out_of_reach(tmp_path, answers):
    answers += [place(cluster=ClusterSpec.from_lists(worker=["b:1"], ps=["10.0.0.1:1", "127.0.0.1:3"]))]
    with pytest.raises(
        SpecError, match=r"ps:1 of the run at 10.0.0.1:1 serves at 127.0.0.1:3, which only that machine"
    ):
        joining_address("10.0.0.1:1", SECRET, {}, tmp_path)


def test_certificates_that_are_named_are_used_also_on_this_machine(tmp_path, answers):
    answers += [place()]
    files = {"ca_file": "ca", "cert_file": "c", "key_file": "k"}
    given = joining_address("127.0.0.1:3", SECRET, files, tmp_path).assignment
    assert answers.asked[0].security.tls is TlsMode.REQUIRED
    assert (given.spec.security.key_file, given.spec.security.tls) == ("k", TlsMode.OFF)


def test_on_the_machine_of_the_run_the_worker_is_kept_there(tmp_path, answers, monkeypatch):
    monkeypatch.setattr(join, "is_alive", lambda files, record: True)
    for name, run_id in (("a", "another"), ("b", "r-1")):
        files = RunFiles(tmp_path / name)
        files.create()
        write_record(files.run, RunRecord(name, "digits", RunState.RUNNING))
        offer_to_join(files, JoinRecord(run_id, True, {}))
    answers += [place()]
    found = joining_address("127.0.0.1:3", SECRET, {}, tmp_path)
    assert (found.run, found.keeper.run, found.assignment.run_dir) == ("b", "b", tmp_path / "b")


def test_a_run_that_ends_while_its_server_is_asked_is_waited_for_no_longer(tmp_path, monkeypatch):
    """The server of the run has ended. The worker must not wait for it as for a server that has not started."""
    files = RunFiles(tmp_path)
    files.create()
    living = {"launcher_pid": os.getpid(), "launcher_started": started_s(os.getpid())}
    record = RunRecord("digits", "digits", RunState.RUNNING, **living)
    write_record(files.run, record)
    write_record(files.spec, RunSpec(wait=WaitSection(start_s=20.0)))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # a port at which no process listens
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        offer_to_join(files, JoinRecord("r-1", True, {"chief": ["127.0.0.1:1"], "ps": [address]}))

        def encode_and_end(request):
            write_record(files.run, replace(record, state=RunState.SUCCEEDED))
            return encode_join_message(request)

        monkeypatch.setattr(join, "encode_join_message", encode_and_end)
        with pytest.raises(RunError, match="digits cannot be joined: its state is succeeded"):
            joining_run(KnownRun(files, record), SECRET, {})
