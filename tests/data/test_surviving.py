"""The rows that a filter leaves over are found once for a run, and never those of another filter."""

import sys
import time
import types
from functools import partial

import numpy as np
import pytest

from dtrain.data import Dataset, TextLineDataset
from dtrain.data.record_index import index_files
from dtrain.data.record_index.addressing import addressed

ROWS = 500


@pytest.fixture(autouse=True)
def run_directory(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("DTRAIN_RUN_DIR", str(tmp_path / "run"))
    index_files._known.clear()


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(ROWS)))
    return TextLineDataset(str(tmp_path / "lines"))


def left_over(dataset, predicate):
    node = addressed(dataset.filter(predicate).node)
    assert node.addressable
    return [int(row) for row in Dataset(node)]


def test_rows_are_looked_at_once_for_a_run(lines):
    def odd(row):
        calls.append(row)
        return int(row) % 2

    calls = []
    assert left_over(lines, odd) == list(range(1, ROWS, 2))
    assert len(calls) == ROWS
    calls.clear()
    assert left_over(lines, odd) == list(range(1, ROWS, 2))
    assert len(calls) < ROWS // 10
    assert left_over(lines, lambda row: int(row) % 2 == 0) == list(range(0, ROWS, 2))


def by_closure(limit):
    return lambda row: int(row) < limit


def by_default(limit):
    return lambda row, most=limit: int(row) < most


def by_keyword(limit):
    return partial(lambda row, *, most: int(row) < most, most=limit)


def by_array(limit):
    kept = np.arange(ROWS) < limit
    return lambda row: kept[int(row)]


def by_helper(limit):
    below = by_closure(limit)
    return lambda row: below(row)


def by_global(limit):
    module = types.ModuleType("of_the_program")
    exec("def predicate(row): return int(row) < LIMIT", module.__dict__)
    module.LIMIT = limit
    return module.predicate


def by_module(limit):
    module = types.ModuleType("of_the_program")
    module.__file__ = "of_the_program.py"
    module.LIMIT = limit
    scope = {"settings": module}
    exec("def predicate(row): return int(row) < settings.LIMIT", scope)
    return scope["predicate"]


class Below:
    """A predicate of the program's own class."""

    def __init__(self, limit):
        self.limit = limit

    def __call__(self, row):
        return int(row) < self.limit


def by_recursion(limit):
    def below(row, depth=2):
        return below(row, depth - 1) if depth else int(row) < limit

    return below


@pytest.mark.parametrize(
    "make",
    [by_closure, by_default, by_keyword, by_array, by_helper, by_global, by_module, Below, by_recursion],
)
def test_a_value_that_a_predicate_uses_makes_it_another_one(lines, make):
    for limit in (300, 301, 302, 303):
        assert left_over(lines, make(limit)) == list(range(limit))


def test_other_data_of_the_same_form_are_not_taken_for_the_first():
    first = np.arange(ROWS)
    other = np.where(first == 301, 0, first)
    for rows in (first, other):
        dataset = Dataset.from_tensor_slices(rows)
        assert left_over(dataset, lambda row: row > 100) == [row for row in rows.tolist() if row > 100]


def test_another_step_before_a_filter_makes_it_another_one(lines):
    for factor in (2, 3):
        found = left_over(lines.map(lambda row, by=factor: int(row) * by), lambda row: row < 900)
        assert found == [factor * number for number in range(ROWS) if factor * number < 900]


def test_a_predicate_may_use_modules_that_are_part_of_python(lines):
    scope = {"time": time, "sys": sys}
    exec("def predicate(row): return int(row) < 9 and time and sys.maxsize", scope)
    assert left_over(lines, scope["predicate"]) == list(range(9))


def test_a_value_that_cannot_be_seen_in_a_predicate_is_found_by_asking_it_again(lines, tmp_path):
    limit = str(tmp_path / "limit")

    def below(row):
        with open(limit) as file:
            return int(row) < int(file.read())

    for most in (300, 100, 500):
        (tmp_path / "limit").write_text(str(most))
        assert left_over(lines, below) == list(range(most))
