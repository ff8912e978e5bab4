"""What tasks have made beside the code that was sent travels part by part, and is written whole or not at all."""

import os

import pytest

from dtrain.process.start_protocol import encode
from dtrain_cli.agent.copies import PIECE_BYTES, FetchedFiles, made_parts
from dtrain_cli.agent.messages import ANSWERS, AllMade, MadePart
from dtrain_cli.code import link_farm


@pytest.fixture
def work(tmp_path):
    """A working directory of links to code."""
    code = tmp_path / "code"
    (code / "package").mkdir(parents=True)
    (code / "train.py").write_text("program")
    (code / "package" / "module.py").write_text("module")
    link_farm(code, tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def here(tmp_path):
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def fetched(work, here):
    files = FetchedFiles(here)
    for part in made_parts(work):
        part = ANSWERS.decode(encode(part).strip())
        if isinstance(part, AllMade):
            files.problems += part.problems
        else:
            files.write(part)
    files.drop()
    return files


def test_files_arrive_as_they_are_and_links_to_the_code_do_not(work, here):
    made = {"model.safetensors": os.urandom(2 * PIECE_BYTES + 7), "empty": b"", "logs/train/events": b"x" * 9}
    made["exactly"] = b"y" * (2 * PIECE_BYTES)
    for name, data in made.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(data)
    files = fetched(work, here)
    assert {
        str(path.relative_to(here)): path.read_bytes() for path in here.rglob("*") if path.is_file()
    } == made
    assert sorted(files.names) == sorted(made)
    assert files.nbytes == sum(map(len, made.values()))
    assert files.problems == []


def test_hidden_files_compiled_modules_and_links_stay_there(work, here):
    for name in (".dtrain-runs", ".git/hooks/pre-commit", "package/__pycache__/module.pyc"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("no")
    (work / "latest").symlink_to("/etc/passwd")
    os.mkfifo(work / "pipe")
    assert fetched(work, here).names == []
    assert list(here.iterdir()) == []


def test_a_file_of_the_code_is_never_replaced(work, here):
    (here / "train.py").write_text("program")
    (work / "train.py").unlink()
    (work / "train.py").write_text("written by the program")
    files = fetched(work, here)
    assert files.problems == ["train.py cannot be written: a file is there that no fetch has brought"]
    assert (here / "train.py").read_text() == "program"


@pytest.mark.parametrize(
    "name", ["../out", "/etc/out", "a/../../out", ".hidden", "a//b", "", "a\0b", ".git/config"]
)
def test_no_name_leads_out_of_the_folder_whatever_an_agent_says(here, name):
    files = FetchedFiles(here)
    files.write(MadePart(name, b"x", last=False))
    files.write(MadePart(name, b"x", last=True))
    files.drop()
    assert files.names == []
    assert "is no name of a file below a folder" in files.problems[0]
    assert list(here.iterdir()) == []
    assert not (here.parent / "out").exists()


def test_half_a_file_leaves_the_one_that_was_there(here):
    (here / "model").write_text("whole")
    files = FetchedFiles(here)
    files.write(MadePart("model", b"ha", last=False))
    files.drop()
    assert [path.read_text() for path in here.iterdir()] == ["whole"]


def test_what_cannot_be_written_is_said_once_and_the_rest_arrives(here):
    (here / "a").write_text("a file")
    files = FetchedFiles(here)
    for last in (False, True):
        files.write(MadePart("a/b", b"x", last))
    files.write(MadePart("c", b"x", last=True))
    assert files.names == ["c"]
    (problem,) = files.problems
    assert problem.startswith("a/b cannot be written: ")
