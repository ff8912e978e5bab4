"""One planted bug of the list, and how it stands with those that do not fit the code any more."""

from collections.abc import Mapping
from dataclasses import dataclass

from planting import Change, place_of, plant


@dataclass(frozen=True)
class Mutant:
    """A bug.

    Attributes:
        file: below ``runtime/dtrain``, or ``dtrain_cli/...``; it is looked for elsewhere if its functions have gone.
        changes: all of them together are the bug; none: it is void.
        says: the bug in words.
        void: why nothing in today's code corresponds to it.
        harmless: why it changes nothing that was promised.
    """

    file: str
    changes: tuple[Change, ...]
    says: str
    void: str = ""
    harmless: str = ""

    def planted(self, source: str) -> str:
        """Return the file's text with the bug in it.

        Raises:
            DoesNotFitError: the code has changed too much for it.
        """
        for change in self.changes:
            source = plant(source, change)
        return source

    def place(self, sources: Mapping[str, str]) -> str:
        """Return the file with the functions of this bug: its own, or else the only other one that it fits.

        Raises:
            DoesNotFitError: no file has them, or several do.
        """
        return place_of(self.file, self.changes, sources)


def bug(
    file: str,
    function: str,
    old: str,
    new: str = "",
    *,
    every: bool = False,
    says: str = "",
    harmless: str = "",
) -> Mutant:
    """Return a bug of one change."""
    first = " ".join(old.split())
    words = says or (f"{first} -> {' '.join(new.split())}" if new else f"drop {first}")
    return Mutant(file, (Change(function, old, new, every),), f"{function}: {words}", harmless=harmless)


def void(file: str, says: str, why: str) -> Mutant:
    """Return a bug that today's code has no place for."""
    return Mutant(file, (), says, void=why)
