"""Code goes to other hosts by its digest: which files, the same bytes each time, whole and never elsewhere."""

import io
import os
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.errors import RunError
from dtrain_cli import code
from dtrain_cli.code import code_files, digest_of, discard, left_out, link_farm, pack, unpack


def git(folder, *words):
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "project"
    for name in ("train.py", "model/net.py", "data/big.npy", "notes.txt", "model/__pycache__/net.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "net.py").symlink_to("model/net.py")
    return folder


def test_git_says_which_files_belong_to_the_code(tree):
    git(tree, "init", "-q")
    (tree / ".gitignore").write_text("data/\n*.pyc\n")
    git(tree, "add", "train.py", "notes.txt")
    (tree / "notes.txt").unlink()
    assert code_files(tree) == [".gitignore", "model/net.py", "net.py", "run.sh", "train.py"]
    assert code_files(tree / "model") == ["net.py"]
    assert code_files(tree, ["*.sh", "/net.py", "model/"]) == [".gitignore", "train.py"]


def test_a_repository_within_is_part_of_the_code(tree):
    for folder in (tree, tree / "model"):
        git(folder, "init", "-q")
    assert "model/net.py" in code_files(tree)


def test_without_git_all_files_do_but_the_excluded(tree):
    assert code_files(tree, ["data/"]) == ["model/net.py", "net.py", "notes.txt", "run.sh", "train.py"]


@pytest.mark.parametrize("repository", [False, True])
def test_earlier_runs_and_links_to_them_are_no_code(tree, tmp_path, repository):
    before = code_files(tree)
    for run in (tree / "runs" / "digits-1", tmp_path / "elsewhere"):
        (run / "logs").mkdir(parents=True)
        (run / "run.json").write_text("{}")
        (run / "logs" / "worker-0.log").write_text("a line")
    (tree / "runs" / "digits-2").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tree / "run.json").write_text("a file of the program, in no directory of a run below the folder")
    if repository:
        git(tree, "init", "-q")
    assert code_files(tree) == sorted([*before, "run.json"])


@pytest.mark.parametrize(
    ("pattern", "path", "out"),
    [
        ("data/", "data/a", True),
        ("data/", "x/data/a", True),
        ("data/", "data", False),
        ("data", "data", True),
        ("*.ckpt", "a/b.ckpt", True),
        ("/a.py", "b/a.py", False),
        ("b/a.py", "b/a.py", True),
        ("b/a.py", "c/b/a.py", False),
        ("b/*.py", "b/c/a.py", False),
        ("b/**/a.py", "b/c/d/a.py", True),
        ("**/d/", "b/c/d/a.py", True),
        (".venv/", ".venv/lib/x", True),
        ("data/[!a]*", "data/b", True),
        ("\\#a", "#a", True),
    ],
)
def test_patterns_mean_what_they_mean_to_git(tmp_path, pattern, path, out):
    assert left_out([pattern]).match_file(path) is out
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text(f"{pattern}\n")
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    ignored = subprocess.run(["git", "-C", str(tmp_path), "check-ignore", "-q", path], check=False)
    assert (ignored.returncode == 0) is out


def test_the_same_files_give_the_same_archive_and_others_another(tree):
    names = code_files(tree)
    first = pack(tree, names)
    os.utime(tree / "train.py", (1, 1))
    (tree / "notes.txt").chmod(0o600)
    assert pack(tree, names) == first
    assert first.digest == digest_of(first.data)
    (tree / "run.sh").chmod(0o644)
    assert pack(tree, names).digest != first.digest


def test_what_was_packed_is_unpacked_once_and_read_only(tree, tmp_path):
    packed = pack(tree, code_files(tree))
    folder = unpack(packed.data, packed.digest, tmp_path / "store")
    assert folder == tmp_path / "store" / packed.digest
    assert code_files(folder) == code_files(tree)
    assert (folder / "model/net.py").read_text() == "model/net.py"
    assert str((folder / "net.py").readlink()) == "model/net.py"
    assert os.access(folder / "run.sh", os.X_OK)
    modes = {path.lstat().st_mode & 0o222 for path in folder.rglob("*") if not path.is_symlink()}
    assert modes == {0}
    assert unpack(b"", packed.digest, tmp_path / "store") == folder
    assert list((tmp_path / "store").iterdir()) == [folder]
    discard(folder)
    assert not folder.exists()


def test_a_working_directory_of_links_leaves_the_code_as_it_is(tree, tmp_path):
    packed = pack(tree, code_files(tree))
    folder = unpack(packed.data, packed.digest, tmp_path / "store")
    work = tmp_path / "run" / "work"
    link_farm(folder, work)
    (work / "notes.txt").unlink()
    (work / "notes.txt").write_text("mine")
    link_farm(folder, work)  # another task of the run
    assert (work / "notes.txt").read_text() == "mine"
    assert (work / "model" / "net.py").read_text() == "model/net.py"
    assert (folder / "notes.txt").read_text() == "notes.txt"


def test_too_much_is_refused_with_the_biggest_files(tree, monkeypatch):
    monkeypatch.setattr(code, "BYTES_MAX", 1000)
    (tree / "data" / "big.npy").write_bytes(bytes(2 << 20))
    with pytest.raises(
        RunError, match=r"2\.0 MiB in 6 files.*code\.exclude.*the biggest: data/big\.npy \(2\.0"
    ):
        pack(tree, code_files(tree))


@pytest.mark.parametrize("target", ["/etc/passwd", "../elsewhere", "model/../../elsewhere"])
def test_a_link_that_leads_out_is_named(tree, target):
    (tree / "link").symlink_to(target)
    with pytest.raises(RunError, match=f"the link link leads to {target}, out of the folder"):
        pack(tree, code_files(tree))


def test_a_folder_without_code_is_named(tmp_path):
    with pytest.raises(RunError, match="has no files to send"):
        pack(tmp_path, code_files(tmp_path))
    with pytest.raises(RunError, match="is no folder"):
        code_files(tmp_path / "nowhere")


def tar_of(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
    return buffer.getvalue()


@every_row(
    "members",
    [
        [("../evil", tarfile.REGTYPE, "")],
        [("/evil", tarfile.REGTYPE, "")],
        [("a/../../evil", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "/etc")],
        [("link", tarfile.SYMTYPE, "../..")],
        [("a", tarfile.SYMTYPE, "b"), ("a/x", tarfile.REGTYPE, "")],
        [("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [("device", tarfile.CHRTYPE, "")],
        [("fifo", tarfile.FIFOTYPE, "")],
        [("twice", tarfile.REGTYPE, ""), ("twice", tarfile.REGTYPE, "")],
        [("n" * 300, tarfile.REGTYPE, "")],
    ],
)
def test_no_archive_writes_elsewhere(tmp_path, members):
    data = tar_of(*members)
    with pytest.raises(RunError, match="no archive of code"):
        unpack(data, digest_of(data), tmp_path / "store")
    assert not list(tmp_path.iterdir())


def test_data_of_another_digest_are_refused(tmp_path):
    data = tar_of(("a", tarfile.REGTYPE, ""))
    with pytest.raises(RunError, match="is not 00"):
        unpack(data, "00" * 16, tmp_path)


@given(st.binary(max_size=2000), st.integers(0, 1023), st.integers(0, 255))
def test_mutated_archives_are_unpacked_within_the_store_or_refused(tmp_path_factory, noise, at, byte):
    store = tmp_path_factory.mktemp("mutated") / "inside" / "store"
    data = bytearray(tar_of(("a/b.py", tarfile.REGTYPE, ""), ("link", tarfile.SYMTYPE, "a/b.py")) + noise)
    data[at] = byte
    try:
        discard(unpack(bytes(data), digest_of(bytes(data)), store))
    except RunError:
        assert not store.exists()
    assert {path.name for path in store.parents[1].iterdir()} <= {"inside"}
