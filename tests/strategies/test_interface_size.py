"""`fit` knows at most 30 members of a strategy, counted over every class of strategies/ that its signatures and
attributes hand out.
"""

import enum
import inspect
import re
import typing

import msgspec

from dtrain.strategies import interface

MOST = 30


def own_members(kind):
    """The public names that a class and its bases of strategies/ define, with the types that they mention."""
    found = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("dtrain.strategies"):
            found |= {name: str(of) for name, of in inspect.get_annotations(each).items()}
            for name, value in vars(each).items():
                function = value.fget if isinstance(value, property) else value
                if callable(function) or name not in found:
                    found[name] = str(getattr(function, "__annotations__", ""))
    return {name: of for name, of in found.items() if not name.startswith("_")}


def is_behaviour(kind):
    """Plain data (the problem, an order, the task's place in its run) are no members, nor are kinds of results."""
    return not issubclass(kind, msgspec.Struct | enum.Enum | BaseException)


def test_fit_knows_at_most_30_members_of_a_strategy(capsys):
    classes = {name: kind for name, kind in vars(interface).items() if inspect.isclass(kind)}
    classes = {
        name: kind for name, kind in classes.items() if kind.__module__.startswith("dtrain.strategies")
    }
    aliases = {"Compute": str(typing.get_args(interface.Compute))}
    members, left = {}, ["FitStrategy"]
    while left:
        name = left.pop()
        if name in members or not is_behaviour(classes[name]):
            continue
        members[name] = own_members(classes[name])
        said = " ".join(members[name].values())
        said += " ".join(text for alias, text in aliases.items() if alias in said)
        left += [word for word in re.findall(r"\w+", said) if word in classes]
    count = sum(map(len, members.values()))
    with capsys.disabled():
        rows = (f"{name} {len(own)}: {', '.join(sorted(own))}" for name, own in members.items())
        print(f"\nfit knows {count} members of a strategy", *rows, sep="\n  ")
    assert members.keys() >= {"FitStrategy", "Training", "Replica"}
    assert count <= MOST


def test_fit_is_given_no_more_than_that():
    """The files of training/fits name no other class of a strategy."""
    from dtrain.training.fits import fitting, handover, leading, loop

    named = {
        name
        for module in (fitting, handover, leading, loop)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__.startswith("dtrain.strategies")
    }
    behaviour = {
        name for name in named if name != "PassedOverTraining" and is_behaviour(vars(interface)[name])
    }
    assert behaviour <= {"FitStrategy", "Training", "Replica"}
