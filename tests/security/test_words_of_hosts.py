"""A host, and the other programs that a launcher asks, may say anything: it costs that host, and never the run."""

import json

import pytest
from row_by_row import every_row
from security import host_readers
from security.host_readers import WELCOME, WORKER

from dtrain.config import RunSpec
from dtrain.errors import RunError
from dtrain.process.start_protocol import LINE_BYTES_MAX, Lines, encode
from dtrain_cli.agent.driver import reached_at
from dtrain_cli.agent.messages import ANSWERS, MAGIC
from dtrain_cli.fleet.link import HostError
from dtrain_cli.launch.kubernetes import lay_over
from dtrain_cli.targets.kubernetes.kubectl import Kubectl
from dtrain_cli.targets.slurm_jobs import read_job

BEAT = {"task": str(WORKER), "pid": 7, "host": "h1"}


def file(name, **record):
    """Return the line that brings a record, as a host writes it."""
    data = json.loads(encode(host_readers.told.Appended(name, json.dumps(record).encode())))["data"]
    return json.dumps({"type": "replaced", "path": name, "data": data}).encode()


def status(**record):
    return file("tasks/worker-0/status.json", **{**BEAT, **record})


ODD = {
    "no JSON": b"hello",
    "no kind": b"{}",
    "unknown kind": b'{"type":"sudo","path":"/"}',
    "control characters": b'{"type":"\x1b]0;x\x07\xe2\x80\xae"}',
    "nesting": b"[" * 200_000,
    "nesting in a field": b'{"type":"pong","monotonic_s":1.0,"x":' + b"[" * 200_000,
    "a moment after the end of time": b'{"type":"pong","monotonic_s":1e300}',
    "a moment of a status": status(monotonic_s=1e300),
    "a moment of a failure": file(
        "tasks/worker-0/attempt-0/failure.json", task="worker:0", message="x", monotonic_s=1e300
    ),
    "a status that is none": status(saved_step="seven"),
    "a change that is none": b'{"type":"changed","path":"tasks/worker-0/status.json","fields":{"saved_step":"7"}}',
    "a number of a thousand digits": status(step=10**1000),
    "nesting in a status": b'{"type":"changed","path":"tasks/worker-0/status.json","fields":{"x":[[[1]]]}}',
    "a task that is none": b'{"type":"exited","task":"nonsense","attempt":0,"status":0,"peak_memory_bytes":0}',
    "a status of no process": b'{"type":"exited","task":"worker:0","attempt":0,"status":9999,"peak_memory_bytes":0}',
    "a signal that is none": b'{"type":"signalled","number":999}',
    "a port that is none": b'{"type":"held","ports":[70000]}',
    "a second welcome": encode(WELCOME).strip(),
    "lists without end": b"[" + b"[]," * 310_000 + b"[]]",
    "a text without end": b'{"type":"failed","reason":"' + b"x" * 5000 + b'"}',
}


def heard(tmp_path, **said):
    """Let h1 say this in place of what it should, in a run of two hosts."""
    case = {**host_readers.sound_answers(), **said}
    for name, data in case.items():
        (tmp_path / "case").mkdir(exist_ok=True)
        (tmp_path / "case" / name).write_bytes(data)
    host_readers.read_host(tmp_path / "case")


@every_row("name", ODD)
def test_odd_words_end_the_host_that_says_them_and_are_quoted(tmp_path, name):
    with pytest.raises(HostError) as told:
        heard(tmp_path, news=ODD[name] + b"\n")
    text = str(told.value)
    assert text.startswith("h1: its agent is not heard any more: ")
    assert text.endswith("; logging in again")
    assert len(text) < 600
    assert text.isprintable()


def test_what_a_host_should_say_is_taken(tmp_path):
    heard(tmp_path)
    status = json.loads((tmp_path / "run/tasks/worker-0/status.json").read_text())
    assert status["step"] == 4


@every_row(
    "name, line, reason",
    [
        ("welcome", MAGIC + b"\n" + encode(WELCOME).replace(b"10.0.0.1/24", b"10.0.0.999"), "10.0.0.999"),
        ("welcome", MAGIC + b"\n" + encode(WELCOME).replace(b"9.0", b"1e300"), "monotonic_s"),
        ("hold", b'{"type":"held","ports":[]}\n', "0 ports instead of 1"),
        ("hold", b'{"type":"held","ports":[2222,2223]}\n', "2 ports instead of 1"),
        ("try", b'{"type":"tried","problems":{"10.0.0.9:1":"refused"}}\n', "at 10.0.0.9:1: refused"),
        ("begin", b'{"type":"done"}\n', "has not answered"),
    ],
)
def test_odd_words_at_the_start_end_it_with_a_sentence_about_the_host(tmp_path, name, line, reason):
    with pytest.raises(HostError, match=r"^h1\b") as told:
        heard(tmp_path, **{name: line})
    assert reason in str(told.value)


def test_an_answer_that_nobody_has_asked_for_changes_nothing(tmp_path):
    heard(tmp_path, news=b'{"type":"held","ports":[2222]}\n{"type":"ready","run_dir":"/x","in_place":true}\n')


def test_a_line_without_end_is_given_up_before_it_takes_memory():
    lines = Lines(ANSWERS.decode)
    for _ in range(LINE_BYTES_MAX >> 16):
        assert lines.feed(b"x" * (1 << 16)) == []
    with pytest.raises(ValueError, match=f"a line of more than {LINE_BYTES_MAX} bytes") as told:
        lines.feed(b"x")
    assert len(str(told.value)) < 300


def test_a_line_of_the_greatest_length_is_taken_in_pieces():
    line = b'{"type":"done"}'.ljust(LINE_BYTES_MAX)
    lines = Lines(ANSWERS.decode)
    assert [
        each for at in range(0, len(line), 1 << 18) for each in lines.feed(line[at : at + (1 << 18)])
    ] == []
    assert lines.feed(b"\n" + line[:20] + b"\n") == [host_readers.told.Done()] * 2


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"fetch"}',
        b'{"type":"want_code","digest":"d"}',
        b'{"type":"start","task":"worker:0"}',
        b"[" * 200_000,
        b'{"type":"hold","address":"a","count":1e9}',
    ],
)
def test_an_agent_tells_its_launcher_why_it_takes_no_more_orders(tmp_path, line):
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "orders").write_bytes(line + b"\n")
    with pytest.raises(RunError, match="its agent failed: "):
        host_readers.read_orders(tmp_path / "case")


def test_a_login_of_unknown_origin_tells_no_address():
    """Source: sshd writes UNKNOWN where its stdin is no socket (`get_peer_ipaddr` of OpenSSH)."""
    assert reached_at("UNKNOWN 65535 UNKNOWN 65535") is None


def test_odd_words_of_slurm_are_no_number():
    report = read_job("JobId=1 JobState=RUNNING EndTime=2026-11-27T10:00:00+01:00 Restarts=" + "9" * 5000)
    assert report.restarts == 0


POD = {
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "uid": "u",
        "creationTimestamp": "t",
        "labels": {"dtrain/role": "worker"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
    },
}


@pytest.mark.parametrize("answer", ["[" * 200_000, "[]", "{}", '{"items": [7]}', "odd exit code", "odd name"])
def test_odd_words_of_kubectl_are_one_error(monkeypatch, answer):
    from dtrain_cli.targets.kubernetes.manifests import CONTAINER, ROLE_LABEL

    pod = json.loads(json.dumps(POD))
    pod["metadata"]["labels"] = {ROLE_LABEL: "worker"}
    if answer == "odd exit code":
        ended = {"name": CONTAINER, "state": {"terminated": {"exitCode": "seven"}}}
        pod["status"] = {"containerStatuses": [ended]}
    if answer == "odd name":
        pod["metadata"]["name"] = ["p"]
    text = answer if not answer.startswith("odd") else json.dumps({"items": [pod]})
    kubectl = Kubectl(RunSpec(), "job/x-worker")
    monkeypatch.setattr(kubectl, "_run", lambda words: text, raising=False)
    with pytest.raises(RunError, match="kubectl get: expected objects in JSON"):
        kubectl.view()


def test_odd_rows_of_a_leaders_pod_are_passed_over():
    report = {"tasks": [{"task": "worker:0"}]}
    lay_over(report, {"tasks": [{"task": ["worker:0"], "step": 3}]})
    assert report["tasks"] == [{"task": "worker:0"}]
