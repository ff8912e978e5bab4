"""One planted bug of the list, and how it stands with those that do not fit the code any more."""

from dataclasses import dataclass

from planting import Change, plant


@dataclass(frozen=True)
class Mutant:
    """A bug.

    Attributes:
        file: below ``runtime/dtrain``.
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
