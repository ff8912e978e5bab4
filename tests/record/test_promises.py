"""Every promise keeps a test: one that is renamed or deleted is named with the promise that it kept."""

from record.promises import LIST, defined, promises, renewed, wrong

TEXT = (
    "# Pages\n\n- It keeps: what it says: `a/test_x.py::test_it`, `test_y.py::test_that`\n- It flies: none\n"
)


def test_every_promise_of_the_list_has_tests_that_exist():
    text = LIST.read_text()
    assert len(promises(text)) > 400
    assert not (found := wrong(text, defined())), "\n".join(found)


def test_a_test_that_is_gone_is_named_with_its_promise_and_one_that_has_moved_is_found():
    assert wrong(TEXT, {"test_it": ["b/test_z.py"], "test_that": ["test_y.py"]}) == []
    assert wrong(TEXT, {"test_it": ["a/test_x.py"]}) == [
        "It keeps: what it says: there is no test_that; others of it are left"
    ]
    assert wrong(TEXT, {}) == [
        "It keeps: what it says: there is no test_it, test_that; no test of it is left"
    ]
    assert wrong("- It flies: soon\n", {}) == ["It flies: expected tests, or `none`"]
    moved = renewed(TEXT, {"test_it": ["b/test_z.py"], "test_that": ["test_y.py"]})
    assert moved == TEXT.replace("a/test_x.py", "b/test_z.py")
