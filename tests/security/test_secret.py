"""`dtrain secret`, and which secrets are refused wherever they are read."""

import os
import re
import stat
import subprocess
import sys

import pytest

from dtrain.errors import SpecError
from dtrain.process.secret import is_random, new_secret, read_secret, said_secret, write_secret


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.secret"
    path.write_text("the secret of a run\n")
    path.chmod(0o600)
    return path


def refused(path):
    with pytest.raises(SpecError) as error:
        read_secret(path)
    assert "the secret of a run" not in str(error.value)
    return str(error.value)


def test_a_new_secret_has_256_bits_and_is_recognised():
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(re.fullmatch(r"dtrain1-[0-9a-f]{64}", secret) and is_random(secret) for secret in secrets)
    for other in ("", "dtrain1-", "dtrain1-password", f"{new_secret()}0", f" {new_secret()}"):
        assert not is_random(other)


def test_the_command_writes_a_private_file_and_never_overwrites(tmp_path):
    command = [sys.executable, "-m", "dtrain_cli.main", "secret", "run.secret"]
    old = os.umask(0)
    try:
        first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    finally:
        os.umask(old)
    assert (first.returncode, first.stdout) == (0, "")
    path = tmp_path / "run.secret"
    secret = read_secret(path)
    assert is_random(secret)
    assert secret not in first.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert second.returncode == 2
    assert second.stderr == "run.secret exists already; a secret is never overwritten\n"
    assert read_secret(path) == secret


def test_who_chose_a_secret_is_warned_once_where_the_file_is_read(file, tmp_path, capfd):
    assert read_secret(file) == read_secret(file) == "the secret of a run"
    assert capfd.readouterr().err == (
        f"dtrain: {file}: a person's secret can be guessed by whoever stands at the address; "
        "`dtrain secret FILE` makes one that cannot\n"
    )
    write_secret(tmp_path / "made.secret")
    read_secret(tmp_path / "made.secret")
    assert capfd.readouterr().err == ""


def test_a_link_is_not_followed_to_write(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match="exists already"):
        write_secret(tmp_path / "link")
    with pytest.raises(SpecError, match="cannot write the secret: No such file"):
        write_secret(tmp_path / "no" / "folder")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_a_file_that_others_can_read_is_refused(file, mode):
    file.chmod(mode)
    assert refused(file) == (
        f"{file}: others can read the secret (mode {mode:04o}); take it from them with `chmod 600 {file}`"
    )


def test_a_file_of_another_user_is_refused(file, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert "belongs to another user" in refused(file)


def test_what_is_no_file_with_a_secret_is_refused_at_once(file, tmp_path):
    assert "cannot read the secret: No such file" in refused(tmp_path / "none")
    assert "Is a directory" in refused(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert "found something else" in refused(tmp_path / "fifo")
    file.write_bytes(b"\xff" * 20)
    assert refused(file).endswith("cannot read the secret: it is not text")
    file.write_text("x" * 5000)
    assert refused(file).endswith("found more than 4 KiB")
    file.write_text("\n")
    assert refused(file).endswith("found an empty file")


def test_a_short_secret_is_refused_wherever_it_stands(file):
    file.write_text("fifteen letters\n")
    assert "expected a secret of at least 16 characters, found 15; make one with" in refused(file)
    with pytest.raises(SpecError, match="DTRAIN_SECRET in the environment: expected a secret"):
        said_secret("letmein123")
    assert said_secret(None) is said_secret("") is None
    file.write_text("x" * 16)
    assert read_secret(file) == said_secret("x" * 16) == "x" * 16
