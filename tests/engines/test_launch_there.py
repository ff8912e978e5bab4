"""`launch --on kubernetes`, `status`, `logs` and `stop`, against a mock of the API of Kubernetes."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys

import pytest
from engines.mock_api import MockApi, install_kubectl
from launching import wait_until

SPEC = "name: tiny\non: kubernetes\ncluster: {chief: 1, worker: 2, ps: 1}\nkubernetes: {image: 'x:1'}\n"
WHOLE = bool(os.environ.get("DTRAIN_KUBECTL"))
"""Whether to run every test, and with the kubectl that is installed too: these take a minute."""
rare = pytest.mark.skipif(not WHOLE, reason="DTRAIN_KUBECTL is not set")


class There:
    """A cluster, and the commands of a user who has a kubectl for it."""

    def __init__(self, api: MockApi, folder, real: bool) -> None:
        self.api = api
        self.folder = folder
        install_kubectl(folder / "bin", api.url, real)
        (folder / "s.yaml").write_text(SPEC)
        (folder / "p.py").write_text("print(1)\n")
        self.begun: list[subprocess.Popen[str]] = []

    def start(self, *words: str, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "DTRAIN_RUNS_DIR": str(self.folder / "runs"),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "dtrain_cli.main", *words],
            cwd=self.folder, env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
        self.begun.append(process)
        return process

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def launched(self, *options: str, **files):
        process = self.start("launch", *options, "s.yaml", "p.py", **files)
        wait_until(lambda: len(self.api.of_kind("jobs")) == 3 or process.poll() is not None, "three Jobs")
        return process


@pytest.fixture(
    params=[False, True] if WHOLE and shutil.which("kubectl") else [False],
    ids=lambda real: "kubectl" if real else "small",
)
def there(request, tmp_path):
    with MockApi() as api:
        there = There(api, tmp_path, request.param)
        yield there
        for process in there.begun:
            process.kill()
            process.communicate()


def test_a_run_is_applied_followed_and_ends_with_its_leader(there):
    process = there.launched("--json")
    assert {plural for plural, _ in there.api.objects} == {
        "configmaps",
        "secrets",
        "persistentvolumeclaims",
        "services",
        "jobs",
    }
    there.api.logs = {
        f"{job['metadata']['name']}-0-abcde": f"hello of {job['metadata']['name'].rsplit('-', 1)[1]}\n"
        for job in there.api.of_kind("jobs")
    }
    there.api.add_pods()
    for role in ("chief", "worker", "ps"):
        there.api.end(role, 0)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "chief:0 | hello of chief" in out
    assert "has succeeded" in err
    report = json.loads(out.splitlines()[-1])
    assert (report["state"], report["exit_code"]) == ("succeeded", 0)
    assert {task["task"]: task["state"] for task in report["tasks"]} == dict.fromkeys(
        ["chief:0", "worker:0", "worker:1", "ps:0"], "succeeded"
    )


@rare
def test_a_leader_that_fails_ends_the_run_with_its_code_and_keeps_its_pod(there):
    process = there.launched()
    name = there.api.of_kind("configmaps")[0]["metadata"]["name"]
    there.api.logs = {f"{name}-chief-0-abcde": "ValueError: no such column\n"}
    there.api.add_pods()
    there.api.end("chief", 7)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    assert "ended with exit code 7" in err
    assert "no such column" in err
    assert there.api.of_kind("pods")
    assert [job["spec"].get("suspend") for job in there.api.of_kind("jobs")] == [True] * 3


@rare
def test_a_waiting_pod_says_why_and_a_timeout_cancels(there):
    process = there.launched("--timeout", "3")
    there.api.add_pods("Pending")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    for pod in there.api.of_kind("pods"):
        pod["status"]["conditions"] = [condition]
    _, err = process.communicate(timeout=60)
    assert process.returncode == 124, err
    assert "worker:1 waits: Unschedulable: 0/3 nodes are available" in err
    assert {plural for plural, _ in there.api.objects} == {"persistentvolumeclaims"}
    assert "resume with  dtrain launch --resume" in err


@rare
def test_a_cluster_that_refuses_leaves_nothing_but_the_disk(there):
    there.api.refuses = "jobs"
    code, _, err = there.run("launch", "s.yaml", "p.py")
    assert code == 1
    assert "quota is exhausted" in err
    assert {plural for plural, _ in there.api.objects} == {"persistentvolumeclaims"}


def test_a_detached_run_is_looked_at_and_stopped_later_and_goes_on_by_resume(there):
    code, _, err = there.run("launch", "--detach", "s.yaml", "p.py")
    assert code == 0, err
    assert "dtrain status" in err
    there.api.add_pods()
    name = there.api.of_kind("configmaps")[0]["metadata"]["name"]
    there.api.logs = {f"{name}-worker-{index}-abcde": f"line {index}\n" for index in range(2)}
    (there.folder / "bin" / "told.json").write_text(
        json.dumps({"global_step": 12, "tasks": [{"task": "worker:1", "step": 11}]})
    )
    code, out, err = there.run("status", "--json")
    report = json.loads(out)
    assert (code, report["state"]) == (0, "running"), err
    if there.api.url and not (there.folder / "bin" / "kubectl").read_text().startswith("#!/bin/sh"):
        assert report["global_step"] == 12
    assert {task["host"] for task in report["tasks"]} == {"n1"}
    code, out, _ = there.run("logs", "worker:0", "worker:1")
    assert sorted(out.splitlines()) == ["worker:0 | line 0", "worker:1 | line 1"]
    code, _, err = there.run("launch", "--resume", "--on", "kubernetes", "s.yaml", "p.py")
    assert (code, "is still in the cluster" in err) == (2, True), err
    code, _, err = there.run("stop")
    assert (code, "has stopped" in err) == (0, True), err
    assert {plural for plural, _ in there.api.objects} == {"persistentvolumeclaims"}
    assert there.run("status")[0] == 4
    code, _, err = there.run("launch", "--detach", "--resume", "s.yaml", "p.py")
    assert code == 0, err
    assert there.api.of_kind("configmaps")[0]["metadata"]["name"] == name, "the same disk and run directory"


@rare
@pytest.mark.parametrize(("answer", "left"), [(b"c\n", False), (b"\n", True)], ids=["cancel", "leave"])
def test_ctrl_c_asks_whether_to_leave_or_to_cancel(there, answer, left):
    person, program = pty.openpty()
    process = there.launched(stdin=program, stderr=program)
    there.api.add_pods()
    process.send_signal(signal.SIGINT)
    seen = b""
    os.set_blocking(person, False)

    def asked() -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(person, 1 << 16)
        return b"type c to cancel" in seen

    wait_until(asked, "the question")
    os.write(person, answer)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert bool(there.api.of_kind("jobs")) is left
    os.close(person)
    os.close(program)


@rare
def test_without_a_terminal_ctrl_c_leaves_it(there):
    process = there.launched()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert there.api.of_kind("jobs")
    assert "dtrain stop" in err


@rare
def test_a_cluster_that_does_not_answer_for_a_while_is_waited_for(there):
    process = there.launched()
    there.api.add_pods()
    there.api.down = True
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "tries again" in line:
            break
    there.api.down = False
    for role in ("chief", "worker", "ps"):
        there.api.end(role, 0)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, "".join(lines) + err


def test_without_kubectl_one_sentence_says_what_to_do(there):
    (there.folder / "bin" / "kubectl").unlink()
    process = subprocess.run(
        [sys.executable, "-m", "dtrain_cli.main", "launch", "s.yaml", "p.py"],
        cwd=there.folder, env={**os.environ, "PATH": str(there.folder / "bin"), "DTRAIN_RUNS_DIR": str(there.folder / "runs")},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (process.returncode, process.stderr.count("\n")) == (1, 1), process.stderr
    assert "kubectl: no such command" in process.stderr
