"""Which examples may be missing in the end: those that were refused, came too late and need not be repeated,
or are under way.
"""

from typing import Any

import numpy as np
from simulation.judging.promises import Promise
from simulation.judging.term import TermSeen
from simulation.judging.units import Counts

from dtrain.messages import Push, Reply

FOUND_S = 8.0
"""A lease, and time for a part to be given to another replica."""


class Dealing:
    """Follows the parts of one call of `fit`: who was given which, and what became of their examples."""

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self._refused: set[int] = set()
        self._pushed: set[int] = set()
        self._hands: dict[str, int] = {}
        self._let_go_s: dict[int, float] = {}
        self._new_s = 0.0
        self._newest = -1

    def begin_term(self, term: TermSeen) -> None:
        """What was given in an earlier term may be given to others."""
        self._hands.clear()
        self._let_go_s.clear()
        self._newest = -1

    def given(self, task: str, part: int, now: float) -> None:
        """ps:0 has told a task to compute a part."""
        before = self._hands.get(task)
        if before != part:
            if before is not None:
                self._let_go_s[before] = now
            self._hands[task] = part
            self._let_go_s.pop(part, None)
        if part > self._newest:
            # A part between them was given to a replica that died before the answer arrived.
            for unheard in range(self._newest + 1, part):
                self._let_go_s.setdefault(unheard, now)
            self._newest, self._new_s = part, now

    def pushed(self, term: TermSeen, push: Push) -> None:
        """A task has sent a gradient."""
        rows = term.cut.rows(push.part)
        self._pushed.update(rows)
        if not push.finite:
            self._refused.update(rows)

    def replied(self, task: str, server: int, reply: Reply, now: float) -> None:
        """A server has judged it, and ps:0 may say what is to be computed next."""
        if server == 0 and reply.ticket and reply.part >= 0:
            self.given(task, reply.part, now)

    def check_end(self, term: TermSeen, counts: Counts, server: str) -> None:
        """The last values contain all that they should."""
        data, cut, rule = term.setup.data, term.cut, self._judge.rule
        rows = np.flatnonzero(counts).tolist()
        batches = max(map(data.batch_of, rows), default=-1) + 1
        parts = range(batches * term.parts)
        missing = {row for part in parts for row in cut.rows(part) if not counts[row]} - self._refused
        if term.begun.has_backups or (not term.begun.sync and rule.stale_gradients == "drop"):
            missing -= self._pushed if rule.on_stale == "skip" else set()
            missing -= {row for part in parts if self._is_under_way(part) for row in cut.rows(part)}
        self._judge.demand(
            Promise.ALL, not missing, f"{server} lacks examples {missing} of {batches} batches"
        )
        halves = {
            part
            for part in parts
            if cut.is_known(part) and 0 < sum(counts[row] > 0 for row in cut.rows(part)) < len(cut.rows(part))
        }
        self._judge.demand(Promise.ALL, not halves, f"{server} contains parts {halves} in part")

    def _is_under_way(self, part: int) -> bool:
        """Whether a part was still to be computed when the steps were over."""
        return (
            part > self._newest
            or part in self._hands.values()
            or self._let_go_s.get(part, 0.0) + FOUND_S > self._new_s
        )
