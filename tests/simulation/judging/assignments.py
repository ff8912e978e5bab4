"""What the leader has ordered: the values that it assigned, and the numbers that are in force."""

from collections.abc import Mapping
from typing import Any

from simulation.disk import Saved
from simulation.judging.promises import Promise
from simulation.judging.term import TermSeen

from dtrain.messages import Control


class Assignments:
    """Follows the orders of one run. A mark in the values says which were assigned last (see `model`)."""

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self._marks_since: dict[int, list[tuple[int, float]]] = {}
        self._in_force: dict[int, tuple[Mapping[str, Any], int]] = {}
        self._outdated: dict[int, tuple[Mapping[str, Any], int]] = {}

    def leader_starts(self) -> None:
        """What an earlier process knew, this one does not."""
        self._marks_since.clear()
        self._in_force.clear()

    def given(self, generation: int, optimizer: Mapping[str, Any], since: int, mark: float | None) -> None:
        """The leader's program knows that these numbers are in force since a version, and these values."""
        in_force = self._in_force[generation] = dict(optimizer), since
        self._outdated = dict.fromkeys(self._outdated, in_force)
        if mark is not None:
            self._marks_since.setdefault(generation, []).append((since, mark))

    def begin_term(self, term: TermSeen) -> None:
        """Servers are given numbers and values again. What was assigned later, or after an end of an epoch that
        comes again, is assigned again if the program likes to.
        """
        known = self._marks_since.get(term.generation, [])
        self._marks_since[term.generation] = [
            (since, mark) for since, mark in known if term.has_come_to(since)
        ]
        in_force = self._in_force.get(term.generation)
        if in_force is not None and dict(term.optimizer) != in_force[0]:
            self._outdated[term.number] = in_force

    def ordered(self, term: TermSeen, control: Control) -> None:
        """The first order of a term may still say what is in force, if no version was made without it that
        had it before.

        In async versions may be under way, so that it holds for one after them.
        """
        in_force = self._outdated.pop(term.number, None)
        late = (
            self._judge.sync
            and in_force is not None
            and control.version > max(in_force[1], term.first_version)
        )
        text = f"the first order of term {term.number} comes at version {control.version}"
        self._judge.demand(Promise.ORDER, not late, f"{text}, and {in_force} was in force")

    def written(self, term: TermSeen, saved: Saved) -> None:
        """A checkpoint has the same mark everywhere."""
        marks = self._marks(term, saved)
        self._judge.demand(Promise.WHOLE, len(set(marks)) == 1, f"the marks of the servers are {marks}")

    def ended(self, term: TermSeen, saved: Saved) -> None:
        """So have the last values, and it is that of the last values that were assigned."""
        known = self._marks_since.get(term.generation)
        if known and self._judge.scenario.optimizer != "ema":  # an average has something of every mark
            mark, marks = known[-1][1], self._marks(term, saved)
            self._judge.demand(
                Promise.ASSIGNED, set(marks) == {mark}, f"{mark} was assigned last, and the marks are {marks}"
            )
        in_force = self._outdated.pop(term.number, None)
        self._judge.demand(
            Promise.ORDER, in_force is None, f"term {term.number} ends without {in_force}, which was in force"
        )

    def _marks(self, term: TermSeen, saved: Saved) -> list[float]:
        return [term.units.in_state(server, state)[1] for server, state in enumerate(saved.states)]
