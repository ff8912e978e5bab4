"""Wrong uses get one sentence that says where and what to do."""

import inspect

import pytest
from keras.mistakes import MISTAKES
from row_by_row import every_row

from dtrain.strategies.interface import close_default
from dtrain.strategies.single import SingleStrategy


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 60


@pytest.mark.filterwarnings("ignore:the file is written in the safetensors format")
@every_row("use, error, words", MISTAKES, ids=lambda each: getattr(each, "__name__", ""))
def test_a_mistake_gets_its_sentence(use, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raised = None
    with SingleStrategy().scope():
        try:
            use()
        except Exception as found:
            raised = found
    close_default()  # what a row has made would be the strategy of the next test
    assert type(raised) is error, f"{inspect.getsource(use)}{raised!r}"
    said = str(raised)
    assert all(word in said for word in words), said
    assert "\n" not in said
    assert ". " not in said.rstrip("."), "two sentences"
