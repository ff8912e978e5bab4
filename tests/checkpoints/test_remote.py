"""Copies of checkpoints at a URL: complete or absent, and fetched by a run that has none."""

import contextlib
import uuid

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dtrain import checkpoints
from dtrain.checkpoints import RemoteCopies, list_checkpoints, open_checkpoint
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointDamagedError, CheckpointError, CopiesTakenError, SpecError
from dtrain.roles.chief.start import fetch_newest


@pytest.fixture
def url():
    return f"memory://{uuid.uuid4().hex}/run"


def save(directory, step, value, keep=2):
    checkpoints.save(directory, step, {"w": np.full(3, value, np.float32)}, {}, now=0.0)
    checkpoints.rotate(directory, keep=keep, keep_every_n_hours=None, now=0.0)


def held(directory):
    with open_checkpoint(directory) as checkpoint:
        return checkpoint.step, checkpoint.read("w").tolist()


def test_what_one_directory_holds_another_fetches(url, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    assert not RemoteCopies(url).fetch(there)
    for step in (0, 5, 9):
        save(here, step, step)
        RemoteCopies(url).upload(here)
    assert RemoteCopies(url).fetch(there)
    assert held(there) == (9, [9.0] * 3)
    assert not RemoteCopies(url).fetch(there), "it is there already"
    assert sorted(name.rpartition("/")[2] for name in fsspec.filesystem("memory").ls(url, detail=False)) == [
        "ckpt-5",
        "ckpt-9",
    ]


def test_a_copy_without_its_manifest_is_none(url, tmp_path):
    save(tmp_path / "here", 3, 1)
    RemoteCopies(url).upload(tmp_path / "here")
    fsspec.filesystem("memory").rm_file(f"{url}/ckpt-3/{checkpoints.MANIFEST}")
    assert not RemoteCopies(url).fetch(tmp_path / "there")
    RemoteCopies(url).upload(tmp_path / "here")
    assert RemoteCopies(url).fetch(tmp_path / "there")


def test_a_step_that_was_made_again_is_copied_again_and_later_ones_go(url, tmp_path):
    here = tmp_path / "here"
    for step, value in ((3, 1), (6, 1)):
        save(here, step, value, keep=9)
    RemoteCopies(url).upload(here)
    save(here, 3, 2, keep=9)
    RemoteCopies(url).upload(here)
    RemoteCopies(url).fetch(tmp_path / "there")
    assert held(tmp_path / "there") == (3, [2.0] * 3)


def test_a_damaged_copy_is_refused_when_it_is_opened(url, tmp_path):
    save(tmp_path / "here", 3, 1)
    RemoteCopies(url).upload(tmp_path / "here")
    files = fsspec.filesystem("memory")
    [data] = [path for path in files.ls(f"{url}/ckpt-3", detail=False) if path.endswith(".safetensors")]
    files.pipe_file(data, files.cat_file(data)[:-1] + b"\xff")
    with pytest.raises(CheckpointDamagedError, match=r"ckpt-3 at memory://.* its checksum is wrong"):
        RemoteCopies(url).fetch(tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_from_a_damaged_copy_it_turns_to_the_one_before_and_says_so(url, tmp_path):
    for step in (3, 6):
        save(tmp_path / "here", step, step)
    RemoteCopies(url).upload(tmp_path / "here")
    fsspec.filesystem("memory").pipe_file(f"{url}/ckpt-6/arrays.safetensors", b"not what was written")
    copies = RemoteCopies(url)
    assert copies.fetch(tmp_path / "there")
    assert held(tmp_path / "there") == (3, [3.0] * 3)
    assert "ckpt-6 at memory://" in copies.warning
    assert copies.warning.endswith("Using ckpt-3 instead")


def test_a_copy_in_the_place_of_another_step_is_none_of_that_step(url, tmp_path):
    save(tmp_path / "here", 3, 3)
    RemoteCopies(url).upload(tmp_path / "here")
    files = fsspec.filesystem("memory")
    for path in files.ls(f"{url}/ckpt-3", detail=False):
        files.pipe_file(path.replace("ckpt-3", "ckpt-9"), files.cat_file(path))
    copies = RemoteCopies(url)
    assert copies.fetch(tmp_path / "there")
    assert held(tmp_path / "there") == (3, [3.0] * 3)
    assert [found.step for found in list_checkpoints(tmp_path / "there")] == [3]
    assert "ckpt-9 at memory://" in copies.warning
    assert "is of step 3" in copies.warning


def test_where_only_damaged_checkpoints_are_left_the_copy_takes_their_place(url, tmp_path):
    save(tmp_path, 3, 3)
    RemoteCopies(url).upload(tmp_path)
    (tmp_path / "ckpt-3" / checkpoints.MANIFEST).write_bytes(b"{}")
    said = []
    fetch_newest(CheckpointSection(remote=url), tmp_path, said.append)
    assert held(tmp_path) == (3, [3.0] * 3)
    assert "no checkpoint in" in said[0]
    assert "goes on from the newest checkpoint at memory://" in said[1]


def test_of_two_runs_with_one_url_the_later_one_has_it_and_the_earlier_one_is_told(url, tmp_path):
    first, second, section = tmp_path / "first", tmp_path / "second", CheckpointSection(remote=url)
    fetch_newest(section, first, print)
    save(first, 3, 3)
    RemoteCopies(url).upload(first)
    fetch_newest(section, second, print)
    assert held(second) == (3, [3.0] * 3)
    save(second, 5, 5)
    RemoteCopies(url).upload(second)
    save(first, 9, 9)
    told = (
        rf"the copies at {url} are those of .*:{second}, not of {first}.*Give each run a "
        rf"checkpoint.remote of its own"
    )
    with pytest.raises(CopiesTakenError, match=told):
        RemoteCopies(url).upload(first)
    with pytest.raises(CopiesTakenError, match=told):
        fetch_newest(section, first, print)
    assert RemoteCopies(url).fetch(tmp_path / "there")
    assert held(tmp_path / "there") == (5, [5.0] * 3)
    fetch_newest(section, second, print)
    RemoteCopies(url).upload(second)


class BreakingStore(MemoryFileSystem):
    """Fails at operation `at`, and from then on; the process behind it is gone, as far as the store can
    tell.
    """

    cachable = False

    def __init__(self, at):
        super().__init__()
        self.left = at

    def _operation(self):
        self.left -= 1
        if self.left < 0:
            raise ConnectionResetError("the store is gone")

    def put_file(self, source, target, **more):
        self._operation()
        super().put_file(source, target, **more)

    def pipe_file(self, path, value, **more):
        self._operation()
        super().pipe_file(path, value, **more)

    def rm_file(self, path):
        self._operation()
        super().rm_file(path)

    def rm(self, path, recursive=False, maxdepth=None):
        self._operation()
        super().rm(path, recursive, maxdepth)

    def makedirs(self, path, exist_ok=False):
        self._operation()
        super().makedirs(path, exist_ok)


def test_an_upload_that_breaks_anywhere_leaves_a_copy_and_the_next_one_makes_all_good(tmp_path):
    for at in range(20):
        here, url = tmp_path / f"here-{at}", f"memory://{uuid.uuid4().hex}/run"
        save(here, 3, 3, keep=1)
        RemoteCopies(url).upload(here)
        save(here, 6, 6, keep=1)
        breaking = RemoteCopies(url)
        breaking._files = BreakingStore(at)
        whole = False
        with contextlib.suppress(CheckpointError):
            breaking.upload(here)
            whole = True
        assert RemoteCopies(url).fetch(tmp_path / f"there-{at}")
        assert held(tmp_path / f"there-{at}") in ((3, [3.0] * 3), (6, [6.0] * 3))
        RemoteCopies(url).upload(here)
        assert [path.rpartition("/")[2] for path in fsspec.filesystem("memory").ls(url, detail=False)] == [
            "ckpt-6"
        ]
        if whole:
            break
    assert whole, "it went through in the end"
    assert at > 3


def test_a_name_in_a_manifest_is_never_a_way_out_of_the_directory(url, tmp_path):
    save(tmp_path / "here", 3, 1)
    RemoteCopies(url).upload(tmp_path / "here")
    files, manifest = fsspec.filesystem("memory"), f"{url}/ckpt-3/{checkpoints.MANIFEST}"
    files.pipe_file(manifest, files.cat_file(manifest).replace(b".safetensors", b"/../../evil"))
    with pytest.raises(CheckpointError):
        RemoteCopies(url).fetch(tmp_path / "there")
    assert list_checkpoints(tmp_path / "there") == []


@pytest.mark.parametrize(
    ("url", "match"), [("bogus://x/y", "Protocol not known"), ("s3://bucket/run", "Install s3fs")]
)
def test_a_url_that_nobody_knows_is_said(url, match):
    pytest.importorskip("fsspec")
    if url.startswith("s3") and __import__("importlib").util.find_spec("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(SpecError, match=match):
        RemoteCopies(url)


def test_a_store_that_refuses_is_named(tmp_path):
    (tmp_path / "file").write_text("no directory")
    save(tmp_path / "here", 3, 1)
    with pytest.raises(CheckpointError, match="cannot copy to file://"):
        RemoteCopies(f"file://{tmp_path}/file").upload(tmp_path / "here")
