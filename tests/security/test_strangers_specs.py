"""A spec is a program of its user, but looking at a stranger's runs nothing: neither `plan` nor `certificates`."""

import json
import os
import subprocess
import sys

import pytest

from dtrain.config.choices import On
from dtrain_cli.launch.engines import engine_of
from dtrain_cli.launch.options import LaunchOptions

WATCHED = """
import sys

def hook(event, arguments):
    if event in ("os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect"):
        raise AssertionError(f"{event} {arguments!r}")
    if event == "subprocess.Popen" and arguments[0] != "git":
        raise AssertionError(f"{event} {arguments!r}")

sys.addaudithook(hook)
from dtrain_cli.main import main
for words in LINES:
    sys.argv = ["dtrain", *words]
    try:
        main()
    except SystemExit as ended:
        assert ended.code in (0, None), f"{words}: exit code {ended.code}"
"""
ENGINES = {
    "ssh": {"hosts": ["h1", "h2"], "python": "EVIL"},
    "slurm": {"python": "EVIL"},
    "kubernetes": {"kubernetes": {"image": "evil", "context": "evil"}},
}
ADDRESSES = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"], "ps": ["10.0.0.3:2222"]}


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A project of a stranger's, of which every file and setting writes a file `ran` when it is run."""
    ran = tmp_path / "ran"
    folder = tmp_path / "project"
    (folder / "bin").mkdir(parents=True)
    evil = folder / "evil"
    evil.write_text(f"#!/bin/sh\necho $0 $* >> {ran}\n")
    evil.chmod(0o755)
    for name in ("ssh", "srun", "sbatch", "kubectl", "python3"):
        (folder / "bin" / name).symlink_to("../evil")
    for name in ("train.py", "sitecustomize.py", "conftest.py"):
        (folder / name).write_text(f"open({str(ran)!r}, 'w').write('{name}')\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "config", "core.fsmonitor", str(evil)], check=True)
    shared = {
        "name": "s",
        "code": {"from": "."},
        "environment": {"LD_PRELOAD": str(evil), "PATH": str(folder / "bin"), "PYTHONSTARTUP": "train.py"},
        "checkpoint": {"remote": "memory://x"},
    }
    for engine, more in ENGINES.items():
        spec = {**shared, "on": engine, "cluster": {"chief": 1, "worker": 1, "ps": 1}, **more}
        (folder / f"{engine}.yaml").write_text(json.dumps(spec).replace("EVIL", str(evil)))
    by_hand = {key: shared[key] for key in ("name", "environment", "checkpoint")}
    (folder / "by_hand.yaml").write_text(json.dumps({**by_hand, "cluster": ADDRESSES}))
    monkeypatch.chdir(folder)
    return ran


def test_a_look_at_a_strangers_spec_runs_nothing(stranger, tmp_path):
    lines = [["plan", f"{engine}.yaml", "train.py"] for engine in ENGINES]
    lines += [["plan", "by_hand.yaml", "train.py"], ["check", "ssh.yaml"]]
    lines += [["certificates", "--out", str(tmp_path / "tls"), "by_hand.yaml"]]
    code = WATCHED.replace("LINES", repr(lines))
    looked = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert looked.returncode == 0, looked.stderr[-2000:]
    assert "kind: ConfigMap" in looked.stdout, "the code of the project was listed"
    assert not stranger.exists(), stranger.read_text()


def test_the_engine_of_a_spec_on_one_line_is_its_own(tmp_path):
    spec = tmp_path / "spec.yaml"
    options = LaunchOptions(spec=spec)
    spec.write_text('{"name": "s", "cluster": {"chief": 1}, "on": "kubernetes"}')
    assert engine_of(options) is On.KUBERNETES
    with spec.open("ab") as file:
        file.truncate(1 << 33)
    assert engine_of(options) is On.LOCAL, "no spec, which the launch reports; it is not read"
