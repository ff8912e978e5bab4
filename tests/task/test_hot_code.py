"""Functions must do what they did, with code that lies elsewhere."""

from dtrain.task.hot_code import gather_what_runs_in


def outer(start):
    def inner(value):
        return value + start

    return [inner(each) for each in range(3)]


def not_called():
    return 1


def test_functions_that_are_called_and_what_is_within_them_get_copies():
    before, left, within = outer.__code__, not_called.__code__, outer.__code__.co_consts
    gather_what_runs_in(lambda: outer(1))
    assert outer.__code__ is not before
    assert outer.__code__ == before
    assert all(now is not then for now, then in zip(outer.__code__.co_consts, within, strict=True) if hasattr(then, "co_code"))
    assert not_called.__code__ is left
    assert outer(2) == [2, 3, 4]
