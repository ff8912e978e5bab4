"""`python -m fuzz` reads each case once, however often it is stopped and started, and keeps the cases that fail."""

import contextlib
from collections import Counter

import pytest
from fuzz import __main__ as fuzz
from security import all_readers
from security.readers import Reader

from dtrain.errors import InputError

FAILING = 70
"""The number of the case that the reader below fails at."""


class Recorder:
    """A reader that writes down the cases that it reads: the first number that their chance draws names them."""

    def __init__(self):
        self.seen, self.until = [], None

    def changed(self, case, chance):
        return {"x": str(chance.getrandbits(64)).encode()}

    def read(self, folder):
        drawn = (folder / "x").read_bytes()
        if drawn == b"sound":
            return
        self.seen.append(drawn)
        if self.until is not None and len(self.seen) == self.until:
            raise KeyboardInterrupt
        if drawn in self.fails:
            raise ValueError("no error of dtrain's")
        if int(drawn) % 2:
            raise InputError("refused")

    fails = frozenset()


def drawn(seed, number):
    """The bytes of a case."""
    chance = fuzz.Random(f"{seed}/{number}")
    return Recorder().changed(chance.choice([{}]), chance)["x"]


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    readers = {
        "a": Reader([{"x": b"sound"}], made.changed, made.read),
        "b": Reader([{"x": b"sound"}], made.changed, made.read),
    }
    monkeypatch.setattr(all_readers, "all_readers", lambda folder: readers)
    monkeypatch.setattr(fuzz, "AT_ONCE", 50)
    monkeypatch.setattr(fuzz.faulthandler, "enable", lambda: None)
    return made


def test_what_was_stopped_goes_on_where_it_stood(recorder, tmp_path, capsys):
    words = ["all", "--cases", "120", "--seed", "9", "--journal", str(tmp_path / "j")]
    for recorder.until in (37, 190, None):
        with contextlib.suppress(KeyboardInterrupt):
            assert fuzz.main(words) == 0
    seen = Counter(recorder.seen)
    assert set(seen) == {drawn(9, number) for number in range(120)}
    stopped = recorder.seen[36], recorder.seen[189]
    assert {case: times for case, times in seen.items() if times != 2} == dict.fromkeys(stopped, 3)
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert [line.partition(":")[0] for line in lines] == ["a", "b"]
    assert all("cases 0 to 120 of seed 9: 0 failed; all 120 of the journal" in line for line in lines)
    recorder.seen.clear()
    assert fuzz.main([*words[:2], "125", *words[3:]]) == 0
    assert Counter(recorder.seen) == dict.fromkeys([drawn(9, number) for number in range(120, 125)], 2)


def test_a_case_that_fails_is_kept_and_can_be_read_again(recorder, tmp_path, capsys):
    recorder.fails = {drawn(0, FAILING)}
    journal = tmp_path / "j"
    words = ["a", "--journal", str(journal)]
    assert fuzz.main([*words, "--cases", "100"]) == 1
    assert len(recorder.seen) == 100, "the next one follows"
    read = sum(int(case) % 2 == 0 for case in recorder.seen if case not in recorder.fails)
    said = capsys.readouterr().out
    assert f"1 failed; all 100 of the journal: {read} read" in said
    assert f"case {FAILING}: ValueError: no error of dtrain's" in said
    assert (tmp_path / "j.failed" / f"a-0-{FAILING}" / "x").read_bytes() == drawn(0, FAILING)
    with journal.open("a") as file:
        file.write('{"reader": "a", "se')  # it was killed as it wrote
    for cases, more in (("100", 0), ("110", 10), ("110", 0)):
        recorder.seen.clear()
        assert fuzz.main([*words, "--cases", cases]) == 1, "one case has failed"
        assert len(recorder.seen) == more
    recorder.seen.clear()
    again = ["a", "--from", str(FAILING), "--cases", "1", "--journal", str(tmp_path / "other")]
    assert fuzz.main(again) == 1
    assert recorder.seen == [drawn(0, FAILING)]


def test_every_reader_is_known_by_its_name(recorder, capsys):
    with pytest.raises(SystemExit):
        fuzz.main(["c"])
    assert "no reader is named 'c'; there are 'a', 'b'" in capsys.readouterr().err
