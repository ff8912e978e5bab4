"""Whole clusters with TLS: under `launch`, which makes the certificates, and by hand with `dtrain certificates`."""

import contextlib
import json
import ssl
from pathlib import Path

from clusters.hand import HandCluster
from clusters.watching import PACED, report_of, step_of, succeeded, tasks_of

NETWORK = ("--set", "training.transport=grpc", "--set", "security.tls=required")
WORDS = (PACED, "--steps", "200", "--pace_s", "0.002")


def files_with(folder: Path, text: bytes) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and text in path.read_bytes():
                found.append(path.name)
    return found


def test_a_launch_makes_certificates_for_its_tasks_restarted_and_joining_ones_included(launcher):
    """The key of the authority is on no disk; those of tasks are on none but join.json, which has the secret."""
    options = (
        "--workers",
        "2",
        "--ps",
        "1",
        "--no-evaluator",
        *NETWORK,
        "--set",
        "restart.worker.backoff_s=0.1",
    )
    options += ("--set", "simulate.kill=[{task: worker:1, at_step: 10}]")
    gated = ("--wait_for", "go", "--after", "30")
    launch = launcher.start(*options, *WORDS, *gated)
    launch.wait_for(lambda: step_of(launch, "worker:1", attempt=1) > 10, "worker:1 did not come back")
    joined = launcher.dtrain("worker", "--join", str(launch.run_dir), *WORDS)
    launch.wait_for(
        lambda: (tasks_of(report_of(launch.run_dir)).get("worker:2") or {}).get("step"), "no worker:2"
    )
    host, _, port = tasks_of(report_of(launch.run_dir))["ps:0"]["address"].rpartition(":")
    assert "BEGIN CERTIFICATE" in ssl.get_server_certificate((host, int(port)))
    launch.wait_for(
        lambda: all(task["certificate_ends"] for task in report_of(launch.run_dir)["tasks"]),
        "no certificate_ends",
    )
    assert files_with(launch.run_dir, b"PRIVATE KEY") == []
    assert files_with(launch.run_dir, b"DTRAIN_TLS_MATERIAL") == []
    (launcher.folder / "go").touch()
    assert joined.end() == 0, joined.err
    succeeded(launch)


def test_a_cluster_by_hand_with_the_certificates_of_the_command(launcher):
    """Each task has files of its own; a task with the files of another one ends with an error before it trains."""
    cluster = HandCluster(launcher, ps=1, chief=1, worker=1)
    tls = {"tls": "required", "ca_file": "tls/ca.crt", "secret_file": "secret.txt"}
    tls |= {
        f"{kind}_file": f"tls/127.0.0.1/{{role}}-{{index}}.{end}"
        for kind, end in (("cert", "crt"), ("key", "key"))
    }
    spec = cluster.spec(security=tls, training={"transport": "grpc"})
    assert launcher.dtrain("certificates", spec, "--out", "tls").end() == 0
    assert launcher.dtrain("secret", "secret.txt").end() == 0
    wrong = ("--tls-cert", "tls/127.0.0.1/worker-0.crt", "--tls-key", "tls/127.0.0.1/worker-0.key")
    refused = launcher.dtrain("chief", "--spec", spec, *wrong, *WORDS)
    for task in ("ps:0", "worker:0"):
        cluster.start(
            task, "--spec", spec, "--index", task.partition(":")[2], *(WORDS if task[0] == "w" else ())
        )
    assert refused.end() == 2
    run = json.loads(Path(spec).read_text())["cluster"]
    assert "the certificate of chief:0 is that of dtrain://hand-" in refused.err, run
    cluster.start("chief:0", "--spec", spec, *WORDS)
    cluster.succeed()
