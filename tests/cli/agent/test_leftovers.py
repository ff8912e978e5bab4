"""What a run leaves on its host: its folder, with the code that was sent."""

import fcntl
import os

import pytest

from dtrain_cli.agent.host_call import Leftovers, remove
from dtrain_cli.agent.messages import CodePart
from dtrain_cli.agent.run_folders import CODE, LOCK, SentCode, run_folder
from dtrain_cli.code import pack


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """Send code to a run on this host; return its working directory."""
    monkeypatch.delenv("DTRAIN_RUNS_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def sent(run, **files):
        folder = tmp_path / "code"
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for name, text in files.items():
            (folder / name).write_text(text)
        archive = pack(folder, sorted(files))
        directory = run_folder("h1", run)
        directory.mkdir(parents=True, exist_ok=True)
        there = SentCode().receive(CodePart(archive.digest, archive.data, last=True), directory)
        assert there.problem is None
        return directory / "work"

    return sent


def stored(run):
    return [path.name for path in (run_folder("h1", run) / CODE).iterdir()]


def test_code_goes_with_its_run_and_stays_with_another(sent):
    sent("r1", program="one")
    work = sent("r2", program="one")
    assert stored("r1") == stored("r2")
    assert remove(Leftovers("h1", ["r1"])).found == ["r1"]
    assert not run_folder("h1", "r1").exists()
    assert (work / "program").read_text() == "one"
    assert remove(Leftovers("h1", ["r2", "unknown"])).found == ["r2"]
    assert not run_folder("h1", "r2").exists()


def test_a_resumed_run_gets_the_code_of_its_last_launch_and_keeps_what_it_made(sent):
    work = sent("r1", program="one", gone="a module")
    (work / "result").write_text("made by the run")
    assert sent("r1", program="two", more="new") == work
    assert {path.name: path.read_text() for path in work.iterdir()} == {
        "program": "two",
        "more": "new",
        "result": "made by the run",
    }
    assert len(stored("r1")) == 1, "the code of the first launch is used no more"


def test_a_run_whose_agent_lives_stays(sent):
    sent("r1", program="one")
    descriptor = os.open(run_folder("h1", "r1") / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert remove(Leftovers("h1", ["r1"])).problems == {"r1": "its agent is still there"}
    finally:
        os.close(descriptor)
    assert (run_folder("h1", "r1") / "work" / "program").read_text() == "one"


@pytest.mark.parametrize("name", ["../../../victim", "..", "", "."])
def test_no_name_of_a_run_leads_out_of_the_folder_of_runs(sent, tmp_path, name):
    sent("r1", program="one")
    (tmp_path / "victim").mkdir()
    remove(Leftovers("h1", [name]))
    remove(Leftovers(name, ["r1"]))
    assert (tmp_path / "victim").is_dir()
    assert (run_folder("h1", "r1") / "work" / "program").read_text() == "one"
