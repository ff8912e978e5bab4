"""The newest checkpoint has a copy at the launcher, which is whole whatever becomes of the host that sends it."""

import pytest

from dtrain.runs.files import RunFiles
from dtrain_cli.agent import copies
from dtrain_cli.agent.copies import checkpoint_parts
from dtrain_cli.agent.messages import AllMade, Fetch
from dtrain_cli.fleet.mirror import SecondPlace


@pytest.fixture
def host(tmp_path):
    """A host's checkpoints."""
    folder = tmp_path / "host"
    folder.mkdir()
    return folder


@pytest.fixture
def files(tmp_path):
    return RunFiles(tmp_path / "here")


def save(folder, step):
    (folder / f"ckpt-{step}").mkdir()
    (folder / f"ckpt-{step}" / "arrays.safetensors").write_bytes(b"%d" % step * 1000)
    (folder / f"ckpt-{step}" / "manifest.json").write_text("{}")


def copied(place, host, step):
    """Have a step copied as a whole; what the user is told."""
    assert place.due({"h1": step}) == ("h1", Fetch(step))
    return [told for part in checkpoint_parts(host, step) if (told := place.write("h1", part))]


def there(files):
    return sorted(path.name for path in files.checkpoints.iterdir() if path.name.startswith("ckpt-"))


def test_each_newer_checkpoint_replaces_the_copy_before(host, files):
    place = SecondPlace(files)
    for step in (0, 5, 12):
        save(host, step)
        assert copied(place, host, step) == []
        assert there(files) == [f"ckpt-{step}"]
    assert place.due({"h1": 12}) is None
    assert (files.checkpoints / "ckpt-12" / "arrays.safetensors").read_bytes() == b"12" * 1000
    assert place.due({"h1": 12, "h2": 15}) == ("h2", Fetch(15)), "another replica leads by now"
    assert place.due({"h1": 20}) is None, "one at a time"


def test_a_host_that_is_lost_in_the_midst_leaves_the_copy_before(host, files):
    place = SecondPlace(files)
    for step in (5, 12):
        save(host, step)
    copied(place, host, 5)
    place.due({"h1": 12})
    place.write("h1", next(checkpoint_parts(host, 12)))
    place.forget("h1")
    assert there(files) == ["ckpt-5"]
    assert place.step == files.newest_step == 5
    assert copied(place, host, 12) == []
    assert there(files) == ["ckpt-12"]


def test_why_there_is_no_copy_is_said_once(host, files, monkeypatch):
    place = SecondPlace(files)
    monkeypatch.setattr(copies, "COPIED_BYTES_MAX", 3 << 20)
    for step in (1, 2):
        save(host, step)
        with open(host / f"ckpt-{step}" / "arrays.safetensors", "ab") as file:
            file.truncate(4 << 20)
    why = "the newest checkpoint has no copy here: it has 4 MiB, and at most 3 are copied"
    assert copied(place, host, 1) == [why]
    assert copied(place, host, 2) == []
    assert copied(place, host, 3) == [
        "the newest checkpoint has no copy here: it cannot be read: No such file or directory"
    ]
    assert files.newest_step is None


def test_a_resumed_run_sends_its_copy_and_goes_on_copying(host, files, tmp_path):
    copied(SecondPlace(files), host, save(host, 5) or 5)
    place = SecondPlace(files)
    parts = list(place.parts())
    assert parts[-1] == AllMade([], 5)
    assert {part.path for part in parts[:-1]} == {"arrays.safetensors", "manifest.json"}
    save(host, 9)
    copied(place, host, 9)
    assert there(files) == ["ckpt-9"]


def test_what_nobody_has_asked_for_is_not_written(host, files):
    place = SecondPlace(files)
    save(host, 5)
    parts = list(checkpoint_parts(host, 5))
    for part in parts:
        place.write("h1", part)
    assert place.due({"h1": 7}) == ("h1", Fetch(7))
    for part in parts:
        place.write("h2", part)
    place.write("h1", parts[-1])
    assert files.newest_step is None
    assert place.asked == ("h1", 7)
