"""A table as one test: every row is checked, and each one that fails is named."""

import inspect

import pytest
from row_by_row import RowsFailError, every_row

NUMBERS = [1, 2, 3, 4]


def even(number):
    assert number % 2 == 0, f"{number} is odd"


def test_the_message_names_every_row_that_fails_and_shows_the_first():
    with pytest.raises(RowsFailError) as raised:
        every_row("number", NUMBERS, ids=["one", "two", "three", "four"])(even)()
    assert [line for line in str(raised.value).splitlines() if "row" in line] == [
        "2 of 4 rows fail:",
        "row 0: one",
        "row 2: three",
    ]
    assert "3 is odd" in str(raised.value)
    assert "1 is odd" in str(raised.value.__cause__)


def test_what_should_have_been_raised_and_was_not_is_a_row_that_fails():
    def refused(number):
        with pytest.raises(ValueError, match="odd"):
            assert number

    with pytest.raises(RowsFailError, match=r"4 of 4 rows fail"):
        every_row("number", NUMBERS)(refused)()


def test_a_table_of_tables_names_every_row_of_each():
    def below(one, other):
        assert one < other

    with pytest.raises(RowsFailError) as raised:
        every_row("one", NUMBERS)(every_row("other", [2, 4])(below))()
    assert str(raised.value).count("rows fail") == 4
    assert str(raised.value).count("AssertionError") == 4


def test_rows_of_several_values_have_folders_of_their_own(tmp_path):
    folders = []

    def check(tmp_path, one, other):
        assert one == other
        folders.append(tmp_path)

    made = every_row("one, other", [(1, 1), (2, 2)])(check)
    assert list(inspect.signature(made).parameters) == ["tmp_path"]
    made(tmp_path=tmp_path)
    assert [folder.is_dir() for folder in folders] == [True, True]
    assert len(set(folders)) == 2


def test_a_table_without_rows_is_skipped_and_not_passed():
    with pytest.raises(pytest.skip.Exception, match="no rows"):
        every_row("number", [])(even)()
