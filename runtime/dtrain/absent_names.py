"""Names that public modules load late, and hints at what to use for a name that a module does not have."""

import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PLACES = (
    "layers data losses metrics optimizers callbacks initializers regularizers constraints activations "
    "distribute utils train data.experimental distribute.experimental"
)


def absent_from(module: str, known: Iterable[str], loaded_late: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of a public module, whose `AttributeError` says what to use.

    A public name that the module has not imported is loaded when it is first used: most programs use few of
    the layers, and no program waits for the others.

    Args:
        module: its name.
        known: the public names in it.
        loaded_late: the modules in which other names are looked up, in this order; else a name is a module.
    """

    def missing(name: str) -> Any:
        if name in known:
            for home in map(import_module, loaded_late):
                if hasattr(home, name):
                    return getattr(home, name)
            return import_module(f"{module}.{name}")
        # `from dtrain import process`, a private module, asks here first, before Python imports it
        inner = name.startswith("_") or _is_module(module, name)
        use = "" if inner else hint(module, name, known)
        raise AttributeError(f"module {module!r} has no attribute {name!r}{use}", name=name)

    return missing


def _is_module(package: str, name: str) -> bool:
    return hasattr(sys.modules.get(package), "__path__") and find_spec(f"{package}.{name}") is not None


@cache
def instead() -> dict[tuple[str, str], str]:
    """Return the sentences of absent_names.txt, by module and name (`*`: any of them)."""
    lines = Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()
    parts = [line.partition(": ") for line in lines if line and not line.startswith("#")]
    return {(names.split()[0], name): sentence for names, _, sentence in parts for name in names.split()[1:]}


def hint(module: str, name: str, known: Iterable[str]) -> str:
    """Return `; ` and what to use in an absent name's place; an empty text: nothing is like it."""
    if found := instead().get((module.removeprefix("dtrain."), name), instead().get(("*", name))):
        return f"; {found}".replace("{name}", name.removeprefix("reduce_"))
    for place in _PLACES.split():
        if f"dtrain.{place}" != module and name in _public(place):
            return f"; it is dt.{place}.{name}"
    by_lower = {each.lower(): each for each in known}
    if near := get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8):
        return f"; do you mean {by_lower[near[0]]}?"
    any_name = instead().get((module.removeprefix("dtrain."), "*"))
    return f"; {any_name}" if any_name else ""


def _public(place: str) -> Iterable[str]:
    owner = import_module("dtrain")
    for part in place.split("."):
        owner = getattr(owner, part)
    return getattr(owner, "__all__", ())
