"""What `launch`, `plan` and `check` refuse of a spec before anything starts, and what they only name."""

import re

import pytest
from msgspec.structs import replace

from dtrain.errors import SpecError
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request

TASKS = "cluster: {chief: 1, worker: 2, ps: 1}\n"


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(text, *sets, **changes):
        (tmp_path / "s.yaml").write_text(text)
        options = LaunchOptions(spec=tmp_path / "s.yaml", sets=sets, program=tmp_path / "p.py")
        return replace(options, **changes)

    return make


def refusal(options, **settings):
    with pytest.raises(SpecError) as caught:
        read_request(options, {}, starts=False, **settings)
    return str(caught.value).replace(f"{options.spec}", "s.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training: {backup_workers: 1}\n", "2:12: training.backup_workers: has no meaning with `updates: async`"),
        ("training: {deterministic: true}\n", "2:12: training.deterministic: has no meaning with `updates: async`"),
        ("on: ssh\n", " hosts: `on: ssh` needs hosts: give `--hosts h1,h2:4`"),
        ("on: ssh\nhosts: [h1:1]\n", "3:1: hosts: 4 tasks (1 chief, 2 workers, 1 ps) have 1 slots (h1:1); give more"),
        ("on: ssh\nhosts: [h1, h2:1]\nplace: {ps: h2, worker: h2}\n", "4:1: place: worker:0 has no slot on h2"),
        ("on: slurm\nhosts: [h1]\nslurm: {servers: {nodes: 1}}\n", "4:9: slurm.servers: a job whose nodes `hosts` names"),
        ("on: kubernetes\n", " kubernetes.image: expected the image of the pods"),
        ("on: kubernetes\nkubernetes: {image: i}\nsecrets: [NO]\n", "4:1: secrets: NO is not set in the environment here; or"),
        ("on: kubernetes\nkubernetes: {image: i}\ncheckpoint: {remote: 's3://u:p@b/x'}\n", "4:1: checkpoint: expected a URL"),
        ("secrets: [NO]\n", "2:1: secrets: NO is not set in the environment here"),
        ("security: {secret_file: short.txt}\n", "2:12: security.secret_file: short.txt: expected a secret of at least 16"),
        ("security: {secret_file: none.txt}\n", "2:12: security.secret_file: none.txt: cannot read the secret"),
        ("security: {tls: required, ca_file: a, cert_file: b, key_file: c}\n", "2:27: security.ca_file: a: cannot read this file"),
        ("security: {tls: required, ca_file: short.txt, cert_file: short.txt, key_file: 'k-{role}-{index}'}\n",
         "2:69: security.key_file: k-chief-0: cannot read this file of TLS"),
    ],
)  # fmt: skip
def test_what_launch_refuses_is_refused_by_check_with_the_place_of_the_key(options, tmp_path, text, said):
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "short.txt").chmod(0o600)
    assert refusal(options(TASKS + text)).startswith(f"s.yaml:{said}")


ELSEWHERE = "is not an address of this machine, and launch starts every task here"


def test_addresses_beside_counts_are_those_of_this_machine(options):
    mixed = options("cluster:\n  chief: 1\n  worker: ['localhost:1', '203.0.113.7:2222']\n  ps: 1\n")
    found = refusal(mixed)
    assert f"s.yaml:3:27: cluster.worker.1: 203.0.113.7:2222 {ELSEWHERE}" in found
    by_hand = options("cluster: {worker: ['203.0.113.7:2222'], ps: ['203.0.113.8:2222']}\n")
    read_request(by_hand, {}, starts=False)
    with pytest.raises(SpecError, match=re.escape(f"cluster.worker.0: 203.0.113.7:2222 {ELSEWHERE}")):
        read_request(by_hand, {})


def test_a_secret_that_a_secret_of_kubernetes_holds_is_none_of_this_machine(options):
    text = f"{TASKS}on: kubernetes\nkubernetes: {{image: i, secret: s}}\nsecrets: [NO]\n"
    read_request(options(text), {}, starts=False)


def test_files_of_tls_that_no_task_would_read_are_not_looked_for(options):
    files = "ca_file: a, cert_file: b, key_file: c"
    for text in (f"{{{files}}}", f"{{tls: off, {files}}}"):
        read_request(options(f"{TASKS}security: {text}\n"), {}, starts=False)


OTHERS_OF_SYNC = (("warmup_steps", 27), ("stale_gradients", 44), ("compensation", 68), ("max_staleness", 87))
"""Keys that have a meaning with other updates alone, and where they stand below."""


@pytest.mark.parametrize("starts", [False, True], ids=["check", "launch"])
def test_keys_that_have_no_meaning_are_refused_at_once_each_with_its_place(options, starts):
    text = "{updates: sync, warmup_steps: 5, stale_gradients: scale, compensation: 0.9, max_staleness: 2}"
    wanted = options(f"{TASKS}training: {text}\n", "training.staleness_bound=3")
    with pytest.raises(SpecError) as caught:
        read_request(wanted, {}, starts=starts)
    *of_file, of_option = sorted(
        str(caught.value).replace(str(wanted.spec), "s.yaml").splitlines(), reverse=True
    )
    for name, column in OTHERS_OF_SYNC:
        assert any(
            line.startswith(f"s.yaml:2:{column}: training.{name}: has no meaning with") for line in of_file
        )
    assert len(of_file) == len(OTHERS_OF_SYNC)
    assert of_option.startswith("--set training.staleness_bound=3: has no meaning with `updates: sync`: ")


@pytest.mark.parametrize(
    ("text", "sets", "said"),
    [
        ("hosts: [h1, h2]\n", (), ["s.yaml:2:1: hosts: not used by `on: local`; did you mean `--on ssh`?"]),
        ("", ("hosts=h1",), ["--set hosts=h1: not used by `on: local`; did you mean `--on ssh`?"]),
        ("network: {ports: 20000-20999}\n", (), ["s.yaml:2:1: network: not used by `on: local`; did you mean `--on ssh`?"]),
        ("python: .venv/bin/python\n", (), ["s.yaml:2:1: python: not used by `on: local`; did you mean `--on ssh`?"]),
        ("code: {from: .}\n", (), ["s.yaml:2:1: code: not used by `on: local`; did you mean `--on ssh`?"]),
        ("slurm: {nodes: 2}\n", (), ["s.yaml:2:1: slurm: not used by `on: local`; did you mean `--on slurm`?"]),
        ("kubernetes: {image: i}\n", (), ["s.yaml:2:1: kubernetes: not used by `on: local`; did you mean `--on kubernetes`?"]),
        ("network: {}\nslurm: {}\nhosts: []\n", (), []),
        ("training: {updates: sync, warmup_steps: 0, backup_workers: 1}\n", (), []),
        ("training: {updates: async, warmup_steps: 5, backup_workers: 0}\n", (), []),
        ("", ("training.strategy=single",), [
            "s.yaml:1:21: cluster.worker: not used by `strategy: single`, which is one process",
            "s.yaml:1:32: cluster.ps: not used by `strategy: single`, which is one process"]),
    ],
)  # fmt: skip
def test_what_has_no_use_is_named_and_fails_nothing(options, capsys, text, sets, said):
    wanted = options(TASKS + text, *sets)
    read_request(wanted, {}, starts=False)
    lines = capsys.readouterr().err.replace(str(wanted.spec), "s.yaml").splitlines()
    assert sorted(lines) == sorted(f"dtrain: {line}" for line in said)
