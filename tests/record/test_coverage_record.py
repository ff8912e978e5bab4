"""Comparing records of coverage: a function is found where it has gone, and what it has lost is named."""

import pytest
from record.coverage_record import (
    WHOLE_MODULE,
    Counted,
    Function,
    lost,
    pairs,
    read,
    statements_of,
    text_of,
)

WHOLE, HALF, NOTHING = Counted(4, 2, 0, 0), Counted(4, 2, 2, 1), Counted(4, 2, 4, 2)


def test_a_record_is_read_as_it_was_written_and_sums_up_files_and_folders():
    functions = [
        Function("a/b/x.py", "C.f", HALF, ["raise ValueError(1)", "return", "if a: -> end"]),
        Function("a/b/x.py", WHOLE_MODULE, WHOLE),
        Function("a/y.py", "g", NOTHING, ["pass"] * 4),
    ]
    text = text_of(functions, ["of a test"])
    assert sorted(read(text), key=lambda each: each.name) == sorted(functions, key=lambda each: each.name)
    rows = {
        line.split()[-1]: line.split()[:-1]
        for line in text.splitlines()
        if line.startswith(("folder", "file"))
    }
    assert rows["a/b"] == ["folder", "75.00", "8", "4", "2", "1"]
    assert rows["a/b/x.py"] == ["file", "75.00", "8", "4", "2", "1"]
    assert rows["a"] == ["folder", "50.00", "12", "6", "6", "3"]


@pytest.mark.parametrize(
    ("file", "others"),
    [
        ("a/joined.py", []),  # another file of the folder
        ("q/x.py", ["q/z.py"]),  # a file of the same name, though others have such a function too
        ("q/r.py", []),  # anywhere
        ("a/x.py", ["a/other.py", "q/x.py"]),  # its own file
    ],
)
def test_a_function_is_found_where_it_has_gone(file, others):
    moved = Function(file, "C.f", HALF)
    now = [*(Function(other, "C.f", HALF) for other in others), moved]
    assert pairs([Function("a/x.py", "C.f", HALF)], now)[0][1] is moved


def test_of_functions_of_one_name_the_one_of_the_most_similar_size_is_taken():
    small, large = Function("q/r.py", "f", Counted(2)), Function("q/s.py", "f", Counted(40))
    before = [Function("a/x.py", "f", Counted(41)), Function("a/y.py", "f", Counted(2))]
    assert [later for _, later in pairs(before, [small, large])] == [large, small]


def test_what_is_reached_no_longer_is_named_wherever_it_has_gone():
    before = [
        Function("a/x.py", "C.f", HALF, ["return 1", "if a: -> end"]),
        Function("a/x.py", "g", WHOLE),
        Function("a/x.py", "h", NOTHING, ["pass"]),
        Function("a/x.py", "old", WHOLE),
    ]
    now = [
        Function("a/z.py", "C.f", HALF, ["return 1", "return 1", "if a: -> return 1"]),
        Function("a/x.py", "g", NOTHING, ["return"]),
        Function("a/x.py", "h", NOTHING, ["pass"]),
        Function("a/x.py", "new", NOTHING, ["pass"]),
    ]
    losses, besides = lost(before, now)
    assert losses == [
        "no longer reached: g of a/x.py",
        "now missed in C.f of a/z.py (was in a/x.py): return 1",
        "now missed in C.f of a/z.py (was in a/x.py): if a: -> return 1",
    ]
    assert besides[:2] == ["gone: old of a/x.py", "new and not reached: new of a/x.py"]
    assert lost(before, before)[0] == []


def test_a_statement_has_one_text_however_it_is_laid_out():
    one = "def f(a):\n    if a and b:\n        return g(1, 2)\n    raise ValueError('x')\n"
    other = "def f(a):\n    if (\n        a\n        and b\n    ):\n        return g(\n            1,\n            2,\n        )\n    raise ValueError(\n        'x'\n    )\n"
    texts = ["def f", "if a and b", "return g(1, 2)", "raise ValueError('x')"]
    assert [sorted(statements_of(source).items()) for source in (one, other)] == [
        list(zip((1, 2, 3, 4), texts, strict=True)),
        list(zip((1, 2, 6, 10), texts, strict=True)),
    ]
