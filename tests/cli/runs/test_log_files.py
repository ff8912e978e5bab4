"""Reading the tasks' output: nothing left out, whatever the bytes; the last lines found from behind."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles
from dtrain_cli.runs import logs
from dtrain_cli.runs.logs import TaskOutput

TASK = TaskId.parse("worker:0")


@pytest.fixture
def write(tmp_path):
    def write(attempt: int, data: bytes, mode: str = "wb") -> None:
        log = RunFiles(tmp_path).log(TASK, attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open(mode) as file:
            file.write(data)

    return write


def test_all_attempts_are_read_in_order_as_they_grow(tmp_path, write):
    output = TaskOutput(RunFiles(tmp_path), TASK)
    assert list(output.blocks()) == []
    write(0, b"one\n\xff half")
    assert list(output.lines(ended=False)) == [b"one\n"]
    write(0, b" line\n", "ab")
    write(1, b"two")
    assert list(output.lines(ended=False)) == [b"\xff half line\n"]
    write(10, b"ten\n")
    assert b"".join(output.lines(ended=True)) == b"two\nten\n"
    assert list(output.lines(ended=True)) == []


def test_raw_blocks_are_the_files_themselves(tmp_path, write):
    data = bytes(range(256)) * 9000
    write(0, data)
    write(1, b"more")
    assert b"".join(TaskOutput(RunFiles(tmp_path), TASK).blocks()) == data + b"more"


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(st.lists(st.sampled_from([b"", b"a", b"bc"]), max_size=5), min_size=1, max_size=3),
    open_end=st.booleans(),
    last=st.integers(0, 8),
    block=st.integers(1, 4),
)
def test_the_last_lines_are_the_last_lines(tmp_path_factory, texts, open_end, last, block):
    directory = tmp_path_factory.mktemp("run")
    whole = b""
    for attempt, lines in enumerate(texts):
        data = b"".join(line + b"\n" for line in lines)
        if open_end and attempt == len(texts) - 1:
            data += b"end"
        log = RunFiles(directory).log(TASK, attempt)
        log.parent.mkdir(parents=True)
        log.write_bytes(data)
        whole += data
    output = TaskOutput(RunFiles(directory), TASK)
    original, logs._BLOCK_BYTES = logs._BLOCK_BYTES, block
    try:
        output.skip_to_last(last)
        read = b"".join(output.blocks())
    finally:
        logs._BLOCK_BYTES = original
    assert read == b"".join(whole.splitlines(keepends=True)[-last:] if last else [])
