"""`launch --on kubernetes`, `status`, `logs` and `stop`, against a mock of the API of Kubernetes."""

import contextlib
import json
import os
import pty
import re
import shlex
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
        wait_until(
            lambda: self._owned_jobs() == 2 or process.poll() is not None, "Jobs, of which one owns two"
        )
        return process

    def _owned_jobs(self) -> int:
        return sum(bool(job["metadata"].get("ownerReferences")) for job in self.api.of_kind("jobs"))


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
        "networkpolicies",
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
    assert re.search(r"^\[pod/tiny-\w+-chief-0-abcde/dtrain\] hello of chief$", out, re.MULTILINE)
    claim = there.api.of_kind("persistentvolumeclaims")[0]["metadata"]["name"]
    assert "has succeeded" in err
    assert f"kubectl delete pvc {claim}" in err
    report = json.loads(out.splitlines()[-1])
    assert (report["state"], report["exit_code"]) == ("succeeded", 0)
    assert {task["task"]: task["state"] for task in report["tasks"]} == dict.fromkeys(
        ["chief:0", "worker:0", "worker:1", "ps:0"], "succeeded"
    )
    there.api.collect("jobs", f"{claim}-chief")  # as its time to live ends
    assert {plural for plural, _ in there.api.objects} == {"persistentvolumeclaims"}


def test_why_no_pod_is_made_is_told_and_the_launch_ends_with_start_s(there):
    process = there.launched("--set", "wait.start_s=1")
    job = there.api.of_kind("jobs")[0]["metadata"]["name"]
    there.api.objects["events", "e"] = {
        "apiVersion": "v1", "metadata": {"name": "e"}, "involvedObject": {"kind": "Job", "name": job},
        "reason": "FailedCreate", "message": "exceeded quota: cpu", "type": "Warning",
    }  # fmt: skip
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "chief:0 waits: FailedCreate: exceeded quota: cpu; the namespace refuses such pods" in err
    assert "chief:0 has not started within 1 s" in err
    assert {plural for plural, _ in there.api.objects} == {"events", "persistentvolumeclaims"}


def test_what_becomes_of_pods_is_told_with_what_to_do(there):
    process = there.launched()
    there.api.add_pods()
    name = there.api.of_kind("configmaps")[0]["metadata"]["name"]
    killed = {"name": "dtrain", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    lost, evicted, silent = (
        there.api.objects["pods", f"{name}-{task}-abcde"] for task in ("worker-0", "worker-1", "ps-0")
    )
    lost["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    lost["status"] = {"phase": "Failed", "containerStatuses": [killed]}
    evicted["status"] = {"phase": "Failed", "reason": "Evicted", "message": "low on ephemeral-storage"}
    silent["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:10Z"
    taint = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "x"}
    silent["status"]["conditions"] = [taint]
    seen = ""
    for line in process.stderr:
        seen += line
        if all(each in seen for each in ("--force", "OOMKilled", "Evicted")):
            break
    for role in ("chief", "ps"):
        there.api.end(role, 0)
    assert process.wait(timeout=60) == 0
    assert "worker:0 has failed" in seen
    assert "OOMKilled; it had 1Gi: give it more by kubernetes.resources.worker.memory" in seen
    assert "Evicted: low on ephemeral-storage; ask for what it needs" in seen
    assert f"if the machine is off: kubectl delete pod {name}-ps-0-abcde --force" in seen


def test_words_that_are_printed_work_and_rm_takes_the_objects_away(there):
    _, _, err = there.run("launch", "--detach", "s.yaml", "p.py")
    there.api.add_pods()
    words = re.findall(r"`dtrain ([^`]+)`", err)
    assert [word.split()[0] for word in words] == ["status", "logs", "stop"], err
    run_id = words[0].split()[1]
    name = there.api.of_kind("configmaps")[0]["metadata"]["name"]
    assert there.run("rm", run_id)[0] == 2, "it lives"
    assert there.run("status", name)[0] == 0, "as the cluster calls it"
    for line in words:
        code, _, err = there.run(*line.split())
        assert code == 0, (line, err)
    removal = re.findall(r"until you give: (kubectl .*)", err)
    assert [shlex.split(line)[1:] for line in removal] == [["delete", "pvc", name]]
    _, _, err = there.run("launch", "--detach", "--resume", run_id, "s.yaml", "p.py")
    there.api.add_pods()
    there.api.end("chief", 0)
    code, _, err = there.run("rm", run_id)
    assert code == 0, err
    assert {plural for plural, _ in there.api.objects} == {"persistentvolumeclaims"}
    assert f"kubectl delete pvc {name}" in err


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


def test_a_waiting_pod_says_why_and_a_timeout_is_the_clusters_and_removes_the_run(there):
    process = there.launched("--timeout", "3")
    assert [job["spec"]["activeDeadlineSeconds"] for job in there.api.of_kind("jobs")] == [3] * 3
    there.api.add_pods("Pending")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    for pod in there.api.of_kind("pods"):
        pod["status"]["conditions"] = [condition]
    seen = ""
    for line in process.stderr:
        seen += line
        if "worker:1 waits: Unschedulable: 0/3 nodes are available" in line:
            break
    code, out, _ = there.run("status")
    assert code == 0
    assert "starting" in out
    waits = "waits: Unschedulable: 0/3 nodes are available; ask for less by kubernetes.resources"
    assert waits in " ".join(out.split()), "the table breaks its lines where the terminal ends"
    late = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    for job in there.api.of_kind("jobs"):
        job["status"] = {"conditions": [late]}
    _, err = process.communicate(timeout=60)
    assert process.returncode == 124, seen + err
    assert {plural for plural, _ in there.api.objects} == {"persistentvolumeclaims"}
    assert "dtrain: resume with  dtrain launch --resume" in err


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
    assert out.splitlines() == [f"[pod/{name}-worker-{i}-abcde/dtrain] line {i}" for i in range(2)]
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


def test_the_commands_that_plan_prints_start_a_run_and_take_it_away(there):
    _, out, err = there.run("plan", "--json", "s.yaml", "p.py")
    said = dict(line.split(": ", 1) for line in err.splitlines() if ": " in line and line[0] != " ")
    env = {**os.environ, "PATH": f"{there.folder / 'bin'}:{os.environ['PATH']}"}
    start = shlex.split(said["start it"].replace("FILE", "-"))
    subprocess.run(start, env=env, input=out, text=True, check=True, timeout=60)
    owner = shlex.split(said["wait for it"])[-1].strip()
    assert owner.split("/")[1] in [job["metadata"]["name"] for job in there.api.of_kind("jobs")]
    subprocess.run(shlex.split(said["take it away"]), env=env, check=True, timeout=60)
    assert {plural for plural, _ in there.api.objects} == {"persistentvolumeclaims"}


def test_without_kubectl_one_sentence_says_what_to_do(there):
    (there.folder / "bin" / "kubectl").unlink()
    process = subprocess.run(
        [sys.executable, "-m", "dtrain_cli.main", "launch", "s.yaml", "p.py"],
        cwd=there.folder, env={**os.environ, "PATH": str(there.folder / "bin"), "DTRAIN_RUNS_DIR": str(there.folder / "runs")},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (process.returncode, process.stderr.count("\n")) == (1, 1), process.stderr
    assert "kubectl: no such command" in process.stderr
