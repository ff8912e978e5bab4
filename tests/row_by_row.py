"""Tables of data as one test each: the test checks every row, and its message names every row that fails. And rows
that a table has only by night.
"""

import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

NIGHT = "DTRAIN_NIGHT" in os.environ
MOST_CHARACTERS = 400
"""What the message says of a row at most; the first row that fails is shown whole."""

_first_alone = False


def by_night(*rows: Any) -> tuple[Any, ...]:
    """Return more rows of what others test by day, where it is night (DTRAIN_NIGHT=1)."""
    return rows if NIGHT else ()


def each_with_one(some: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return pairs: by day each of `some` with one of the others in turn, by night each with each."""
    return list(itertools.product(some, others) if NIGHT else zip(some, itertools.cycle(others)))


class RowsFailError(AssertionError):
    """Rows of a table fail."""


def stop_at_the_first() -> None:
    """Let tables end at their first row that fails: for runs that only ask whether one does."""
    global _first_alone
    _first_alone = True


def every_row(
    names: str, rows: Iterable[Any], ids: Callable[[Any], Any] | Iterable[Any] = repr
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make one test of a function that checks a row. It is used as `pytest.mark.parametrize` is.

    Each row has a folder of its own where the function takes `tmp_path`; other fixtures are the test's.

    Args:
        names: the arguments that stand in a row, with commas between them.
        rows: of each row the value, or a tuple of the values where there are several names.
        ids: how rows are named: each by its own id, or by a function of its value; of several values each
            is named.
    """
    arguments = [name.strip() for name in names.split(",")]
    table = [row if len(arguments) > 1 else (row,) for row in rows]
    named = [" - ".join(str(ids(value)) for value in row) for row in table] if callable(ids) else list(ids)

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def test(**fixtures: Any) -> None:
            if not table:
                pytest.skip("the table has no rows")
            failed: dict[str, BaseException] = {}
            for number, row in enumerate(table):
                if "tmp_path" in fixtures:
                    own = fixtures | {"tmp_path": fixtures["tmp_path"] / f"{number}"}
                    own["tmp_path"].mkdir()
                else:
                    own = fixtures
                try:
                    check(**own, **dict(zip(arguments, row, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    failed[f"row {number}: {named[number]}"] = error
                    if _first_alone:
                        break
            if failed:
                said = [f"{name}\n    {_in_short(error)}" for name, error in failed.items()]
                message = "\n".join([f"{len(failed)} of {len(table)} rows fail:", *said])
                raise RowsFailError(message) from next(iter(failed.values()))

        signature = inspect.signature(check)
        left = [each for name, each in signature.parameters.items() if name not in arguments]
        test.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return test

    return decorate


def _in_short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, RowsFailError):  # a table of tables
        return text.replace("\n", "\n    ")
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."
