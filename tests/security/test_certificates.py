"""Certificates: never overwritten, and refused by a task unless they fit each other."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec
from dtrain.cluster.spec import LeafNames
from dtrain.errors import SpecError
from dtrain.process.tls_material import TlsMaterial
from dtrain.wire.security.tls import Certificate, CertificateFiles, Certificates, checked
from dtrain_cli.certificates.authority import make_authority, places, read_authority
from dtrain_cli.certificates.by_library import Authority
from dtrain_cli.main import cli

SPEC = "cluster: {chief: ['a:1'], worker: ['a:2', '[fd00::2]:2'], ps: ['..:3'], evaluator: 1}\n"
RUN = f"hand-{ClusterSpec.from_lists(chief=['a:1'], worker=['a:2', '[fd00::2]:2'], ps=['..:3']).hash}"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority("digits")


def material(authority: Authority, name: str = "ps-0", days: int = 30, trusted: bytes = b"") -> TlsMaterial:
    leaf = authority.issue(LeafNames.of("digits", name), days)
    return replace(leaf, authorities=trusted or authority.certificate)


def refused(wrong: TlsMaterial) -> str:
    with pytest.raises(SpecError) as caught:
        checked(wrong, "here")
    return str(caught.value)


def test_what_an_authority_signs_a_task_takes_also_after_the_authority_was_read_again():
    made = Authority.make("dtrain digits", 30)
    again = read_authority(made.certificate, made.key)
    assert (again.lives(29), again.lives(31)) == (True, False)
    found = checked(material(again, days=10), "here")
    assert found.hosts == ("dtrain", "ps-0.dtrain")
    assert found.uris == ("dtrain://digits/ps/0",)
    assert 10 * 86400 <= found.ends_s - found.begins_s <= 10 * 86400 + 600


def test_names_of_runs_are_written_so_that_no_run_has_another_one_s():
    assert LeafNames.of("zäh/ps/0", "ps-1").uri == "dtrain://z%C3%A4h%2Fps%2F0/ps/1"


def test_without_the_library_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dtrain_cli.certificates.by_library", None)
    with pytest.raises(
        SpecError, match=r"package cryptography: `pip install -e '\.\[tls\]'` in dtrain's clone"
    ):
        make_authority("digits")


def test_what_does_not_fit_is_refused_with_the_reason(authority):
    good, other = material(authority), make_authority("digits")
    assert "unable to get local issuer" in refused(material(authority, trusted=other.certificate))
    expired = refused(material(authority, days=0))
    assert "expired" in expired
    assert f"the clock of {socket.gethostname()} says " in expired
    assert "key belongs to another" in refused(TlsMaterial(good.authorities, good.certificate, other.key))
    for text in (b"", b"\xff", b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n"):
        assert "no certificates of authorities" in refused(TlsMaterial(text, good.certificate, good.key))
        assert "a certificate and a key" in refused(TlsMaterial(good.authorities, text, good.key))
        assert "a certificate and a key" in refused(TlsMaterial(good.authorities, good.certificate, text))


def test_a_key_with_a_password_asks_no_terminal(authority, tmp_path):
    good = material(authority)
    (tmp_path / "key").write_bytes(good.key)
    locked = subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", tmp_path / "key", "-passout", "pass:x"],
        capture_output=True,
        check=True,
    ).stdout
    assert "without a password" in refused(TlsMaterial(good.authorities, good.certificate, locked))


def test_an_authority_is_replaced_by_way_of_a_file_with_both(authority):
    later = make_authority("digits")
    both = authority.certificate + later.certificate
    for one in (authority, later):
        assert checked(material(one, trusted=both), "here").hosts[0] == "dtrain"


def written(folder: Path, material: TlsMaterial) -> CertificateFiles:
    files = CertificateFiles(folder / "ca.crt", folder / "tls.crt", folder / "tls.key")
    for path, content in (
        (files.authorities, material.authorities),
        (files.certificate, material.certificate),
        (files.key, material.key),
    ):
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        path.chmod(0o600)
    return files


def test_files_that_were_replaced_are_used_once_they_fit(authority, tmp_path):
    warnings: list[str] = []
    files = written(tmp_path, material(authority))
    certificates = Certificates(files, warnings.append)
    before = certificates.current()
    assert certificates.current() is before
    new = material(authority, "ps-1")
    files.certificate.unlink()
    assert certificates.current() is before
    files.certificate.write_bytes(new.certificate)
    assert certificates.current() is before
    assert [text.split("; ")[-1] for text in warnings] == [
        "new connections use the certificate that was there before"
    ] * 2
    written(tmp_path, new)
    assert certificates.current().uris == ("dtrain://digits/ps/1",)
    assert len(warnings) == 2


@pytest.mark.parametrize("name", ["ca.crt", "tls.crt", "tls.key"])
def test_a_named_file_that_cannot_be_read_is_an_error(authority, tmp_path, name):
    files = written(tmp_path, material(authority))
    path = tmp_path / name
    path.unlink()
    with pytest.raises(SpecError, match=f"{name}: cannot read"):
        Certificates(files)
    os.mkfifo(path, 0o600)
    with pytest.raises(
        SpecError, match=f"{name}: cannot read this file of TLS: expected a file, found a FIFO"
    ):
        Certificates(files)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)
    with pytest.raises(SpecError, match=name):
        Certificates(files)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(authority, tmp_path, mode):
    files = written(tmp_path, material(authority))
    files.key.chmod(mode)
    with pytest.raises(SpecError, match=f"others can read this key .mode {mode:04o}"):
        Certificates(files)


def test_a_key_of_root_s_may_be_read_by_the_group_of_another_user(authority, tmp_path, monkeypatch):
    """Kubernetes mounts secrets so for tasks that are not root."""
    files = written(tmp_path, material(authority))
    files.key.chmod(0o440)
    monkeypatch.setattr(os, "getuid", lambda: files.key.stat().st_uid + 1)
    if files.key.stat().st_uid == 0:
        assert Certificates(files).current().uris
    else:
        with pytest.raises(SpecError, match="others can read this key"):
            Certificates(files)
    files.key.chmod(0o444)
    with pytest.raises(SpecError, match="others can read this key"):
        Certificates(files)


def command(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["certificates", *map(str, words)])
    return result.exit_code, str(result.exception or "") + result.output


@pytest.fixture
def spec(tmp_path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def test_each_host_gets_a_folder_with_its_tasks(spec, tmp_path):
    out = tmp_path / "tls"
    assert command(spec, "--out", out)[0] == 0
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    tasks = {"a": ("chief-0", "worker-0"), "fd00__2": ("worker-1",), "_": ("ps-0",)}
    tasks |= {"evaluator": ("evaluator-0",), "joining": ("worker-joined",)}
    named = {
        f"{folder}/{name}.{end}"
        for folder, names in tasks.items()
        for name in names
        for end in ("crt", "key")
    }
    assert files == {
        ".gitignore",
        "ca.crt",
        "authority/ca.key",
        *(f"{folder}/ca.crt" for folder in tasks),
        *named,
    }
    private = [*out.rglob("*.key"), *(path for path in out.rglob("*") if path.is_dir()), out]
    assert not [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077]
    leaf = current(out, "_", "ps-0")
    assert (leaf.hosts, leaf.uris) == (("dtrain", "ps-0.dtrain"), (f"dtrain://{RUN}/ps/0",))
    assert current(out, "joining", "worker-joined").uris == (f"dtrain://{RUN}/worker/joined",)


def current(out: Path, folder: str, name: str) -> Certificate:
    at = out / folder
    return Certificates(CertificateFiles(at / "ca.crt", at / f"{name}.crt", at / f"{name}.key")).current()


def test_nothing_is_overwritten_and_new_leaves_are_of_the_same_authority(spec, tmp_path):
    out = tmp_path / "tls"
    command(spec, "--out", out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, said = command(spec, "--out", out)
    assert code != 0
    assert "ca.key and 18 more exist: --renew makes" in said
    assert {path: path.read_bytes() for path in before} == before
    assert command("--renew", "--days", "7", spec, "--out", out)[0] == 0
    changed = {path for path in before if path.read_bytes() != before[path]}
    assert changed == {path for path in before if not path.name.startswith(("ca.", ".gitignore"))}
    leaf = current(out, "a", "chief-0")
    assert leaf.ends_s - leaf.begins_s < 8 * 86400
    assert "ends in less than 1000 days" in command("--renew", "--days", "1000", spec, "--out", out)[1]


def test_counts_and_missing_authorities_are_refused_and_nothing_is_left(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("cluster: {chief: 1, ps: ['a:1']}\n")
    assert "cluster.chief is a count" in command(spec, "--out", tmp_path / "tls")[1]
    spec.write_text(SPEC)
    refused = command("--renew", spec, "--out", tmp_path / "tls")[1]
    assert "ca.crt: cannot read" in refused
    assert f"and {tmp_path / 'tls' / 'authority' / 'ca.key'}" in refused
    assert not (tmp_path / "tls").exists()


def test_no_host_s_name_leads_out_of_the_folder():
    assert set(places({}).values()) == {"joining"}
    from dtrain_cli.certificates.authority import _host_folder

    assert [_host_folder(f"{host}:1") for host in ("..", ".", "a..b", "[::1]", "-x")] == [
        "_",
        "_",
        "a..b",
        "__1",
        "x",
    ]


def test_the_library_is_not_loaded_by_other_commands():
    code = "import dtrain_cli.main, sys; print([m for m in ('cryptography', 'ssl') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
