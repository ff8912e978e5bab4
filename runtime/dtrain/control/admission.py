"""Admission of workers that join a run while it trains, and know no more than its secret. Machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from dtrain.config import ClusterTraining
from dtrain.control.rights import JOINED_MAX
from dtrain.control.roster import Roster, Standing
from dtrain.messages import AnyMessage, Join, NotReady, Place, Refusal


@dataclass
class Admission:
    """One task's answers to workers that would like to join.

    Attributes:
        place: what they are told; None: this task lets none join.
        take: takes a worker's index for good, or returns False; None: what is given is forgotten with this
            task, so that only the leader, who comes with a term, knows which workers there have been.
    """

    place: Place | None = None
    take: Callable[[int], bool] | None = None

    def answer(
        self, message: AnyMessage, roster: Roster, standing: Standing | None, training: ClusterTraining
    ) -> Place | NotReady | Refusal:
        """Answer a worker that has no index.

        Args:
            message: from it.
            roster: of this task.
            standing: how training stands; None before it has begun.
            training: the rules in force.
        """
        place = self.place
        if place is None or not isinstance(message, Join):
            return Refusal(reason="a worker that has no index may only ask a server for one")
        if roster.farewell:
            return Refusal(reason=f"run {place.run_id} is over")
        if not roster.hosts:
            return place
        if standing is None and self.take is None:
            return NotReady(reason="training has not begun")
        if (index := roster.promise(self.take or (lambda index: True))) is None:
            return Refusal(reason=f"run {place.run_id} takes no more workers: {JOINED_MAX} have asked")
        return msgspec.structs.replace(place, index=index, spec=replace(place.spec, training=training))
