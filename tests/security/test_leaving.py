"""Secrets and private keys never leave the machine with the code of a run, on whatever engine."""

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from dtrain.config import RunSpec, SecuritySection
from dtrain.errors import SpecError
from dtrain.process.secret import new_secret, write_secret
from dtrain_cli.code import may_leave
from dtrain_cli.commands.security import certificates, secret
from dtrain_cli.launch import on_hosts
from dtrain_cli.launch.kubernetes import gather
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.plan.run_plan import Workload
from dtrain_cli.targets.kubernetes.manifests import json_text, manifests

KEY = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"
CLUSTER = "cluster: {chief: 1, worker: 1, ps: 1, evaluator: 0}\n"
ON_KUBERNETES = CLUSTER + "on: kubernetes\nkubernetes: {image: 'x:1'}\ncode: {from: .}\n"
REMOTE = "checkpoint: {remote: 's3://ANN:PASSW0RD@bucket/x'}\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a program and, untracked, what the guides tell people to make, and what they have."""
    (tmp_path / "train.py").write_text("import dtrain\n")
    (tmp_path / "id_map.py").write_text("# a module\n")
    (tmp_path / "mine.txt").write_text("for me alone\n")
    (tmp_path / "mine.txt").chmod(0o600)
    write_secret(tmp_path / "secret.txt")
    for name, text in {
        ".env": "TOKEN=1",
        "conf/.env.local": "TOKEN=2",
        "ssh/id_rsa": "k",
        "tls/h1/chief-0.key": KEY,
        "a.pem": KEY,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, text in {"renamed": KEY, "copied": f"secret: {new_secret()}\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "link").symlink_to("tls/h1/chief-0.key")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(project: Path, text: str, **more) -> LaunchOptions:
    (project / "spec.yml").write_text(text)
    return LaunchOptions(spec=project / "spec.yml", program=project / "train.py", **more)


def test_only_code_goes_to_hosts_and_one_line_names_the_rest(project):
    lines: list[str] = []
    spec = RunSpec(security=SecuritySection(secret_file="mine.txt"))
    workload = Workload(project / "train.py", (), project)
    archive = on_hosts._packed(workload, spec, lines.append)[1]
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as tar:
        assert tar.getnames() == ["id_map.py", "train.py"]
    (line,) = lines
    assert line.startswith("left out of the code: .env, a.pem, conf/.env.local, copied, link and 5 more: ")
    assert line.endswith("secrets and private keys stay on this machine")


def test_the_files_of_a_specs_tls_stay_whatever_they_are_called(project):
    for name in ("tls/chief-0.txt", "tls/chief-0.crt", "tls/notes"):
        (project / name).write_text("x")
    names = ["tls/chief-0.txt", "tls/chief-0.crt", "tls/notes"]
    section = SecuritySection(
        cert_file="tls/{role}-{index}.crt", key_file=f"{project}/tls/{{role}}-{{index}}.txt"
    )
    assert may_leave(project, names, section, lambda _: None) == ["tls/notes"]


def test_a_config_map_has_neither_keys_nor_what_links_lead_to(project, capsys):
    run = gather(options(project, ON_KUBERNETES), {})
    assert sorted(run.code.files) == ["id_map.py", "mine.txt", "spec.yml", "train.py"]
    assert "PRIVATE KEY" not in json_text(manifests(run))
    assert "dtrain: left out of the code: .env, a.pem" in capsys.readouterr().err


def test_a_file_that_shows_a_secret_of_the_run_is_refused_on_kubernetes(project):
    own = (project / "secret.txt").read_text().strip()
    (project / "train.py").write_text(f"secret = {own!r}\n")
    text = ON_KUBERNETES + "security: {secret_file: secret.txt}\n"
    with pytest.raises(SpecError, match=r"code: train.py holds a secret of the run") as error:
        gather(options(project, text), {})
    assert own not in str(error.value)
    (project / "train.py").write_text("token = 'hf_0123456789abcdef'\n")
    with pytest.raises(SpecError, match=r"code: train.py holds a secret of the run"):
        gather(options(project, ON_KUBERNETES + "secrets: [HF]\n"), {"HF": "hf_0123456789abcdef"})


@pytest.mark.parametrize(
    ("text", "arguments", "place"),
    [
        (REMOTE, (), "checkpoint"),
        ("environment: {DB: 'postgres://ann:PASSW0RD@db/x'}\n", (), "environment"),
        ("", ("--data", "s3://ANN:PASSW0RD@bucket/x"), "arguments"),
    ],
)
def test_the_password_of_a_url_is_refused_where_others_would_read_it(project, text, arguments, place):
    asked = options(project, ON_KUBERNETES + text, arguments=arguments)
    with pytest.raises(SpecError, match=f"{place}: expected a URL without a password") as error:
        gather(asked, {})
    assert "PASSW0RD" not in str(error.value)


def test_a_url_with_a_name_alone_is_taken(project):
    text = ON_KUBERNETES + "checkpoint: {remote: 'abfs://container@account.dfs.core.windows.net/x'}\n"
    config = json.loads(json_text(manifests(gather(options(project, text), {}))))["items"][0]
    assert "container@account" in config["data"]["spec.json"]


def test_git_ignores_what_the_commands_make(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q", "."], check=True)
    Path(".gitignore").write_text("*.pyc")
    Path("two.yaml").write_text("cluster: {chief: ['a:2222'], worker: ['b:2222'], ps: ['a:2223']}\n")
    for command, words in (
        (secret, ["own [1].txt"]),
        (secret, ["other.txt"]),
        (certificates, ["two.yaml", "--out", "tls"]),
        (certificates, ["two.yaml", "--out", "tls", "--renew"]),
    ):
        result = CliRunner().invoke(command, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    listing = ["git", "ls-files", "--others", "--exclude-standard"]
    found = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\n")
    assert found == [".gitignore", "two.yaml", ""]
    assert Path(".gitignore").read_text().startswith("*.pyc\n")
    Path(".gitignore").unlink()
    Path(".gitignore").symlink_to("elsewhere")
    assert CliRunner().invoke(secret, ["third.txt"]).exit_code == 0
    assert not Path("elsewhere").exists()
