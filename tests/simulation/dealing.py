"""Which parts may make a version, derived from what was promised of them: rule 10 of training together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from simulation.data import Data
from simulation.scenario import Scenario
from simulation.truth import Term, parts_done

from dtrain.protocol.part_dealer import NO_RANK, Dealt
from dtrain.protocol.sync_round import Contribution
from dtrain.roles.parameter_server.held import Held
from dtrain.roles.parameter_server.sync_pushes import SyncPushes

Parts = Mapping[int, int]
"""Of every gradient, by its number, the part."""


class Dealing:
    """The judge of one call of `fit`. Every method raises AssertionError where a rule is broken."""

    def __init__(self, scenario: Scenario, data: Data, parts: Parts) -> None:
        self._scenario = scenario
        self._data = data
        self._parts = parts
        self._whole = scenario.training.updates == "sync" and not data.even

    def counted(self, term: Term) -> Counter[int]:
        """How often each part counts, also in what a checkpoint contains."""
        return Counter(self._parts[number] for numbers in term.counted.values() for number in numbers)

    def next_batch(self, term: Term) -> int:
        """Without backups: the batch that makes the next version; if all its gradients are refused, the one after it."""
        return 1 + max([part // self._data.parts for part in self.counted(term)], default=-1)

    def check_commit(self, term: Term, numbers: Sequence[int], contributors: Sequence[Contribution]) -> int:
        """These gradients are to make a version; return how many parts of their batch have no examples."""
        parts = [self._parts[number] for number in numbers]
        assert parts == sorted(set(parts)), f"parts {parts} are not in order, or count twice"
        again = self.counted(term).keys() & set(parts)
        assert not again, f"parts {again} count twice"
        self._check_quota(term, contributors)
        if not self._whole:
            assert len(parts) == self._data.parts, f"{len(parts)} parts make a version"
            return 0
        batch, following = parts[0] // self._data.parts, self.next_batch(term)
        filled = self._data.filled(batch)
        assert parts[-1] // self._data.parts == batch, f"parts {parts} of several batches"
        assert batch >= following, f"parts {parts} come after batch {following - 1}"
        skipped = set().union(*map(self._data.filled, range(following, batch)))
        refused = f"only {term.refused} were refused"
        assert skipped <= term.refused, f"parts {parts} follow batch {following - 1}, and {refused}"
        assert filled - set(parts) <= term.refused, f"parts {parts} are all of batch {batch}, and {refused}"
        return self._data.parts - len(filled)

    def _check_quota(self, term: Term, contributors: Sequence[Contribution]) -> None:
        shrinks = self._scenario.training.too_few == "shrink"
        replicas = self._scenario.replicas
        replicas = max(1, min(term.fewest_live, replicas)) if shrinks else replicas
        quota = max(1, ceil(self._data.parts / replicas))
        most = max(Counter(contributor[:2] for contributor in contributors).values())
        assert most <= quota, f"a replica counts {most} times in {contributors}, and may {quota} times"

    def check_left(self, term: Term, dealt: Dealt) -> None:
        """What a checkpoint would say is left: no part that counted, all that did not and have to."""
        done = set(parts_done(dealt))
        again = self.counted(term).keys() - done
        if self._scenario.training.updates == "sync":
            assert not again, f"parts {again} are dealt again, and they count"
        if self._whole:
            begun = self.next_batch(term) * self._data.parts
            lost = {part for part in done - term.refused if part >= begun and self._data.examples(part)}
            assert not lost, f"parts {lost} would be lost"
            repeated = {part for part in dealt.due if part < begun}
            assert not repeated, f"parts {repeated} would be repeated"
        else:
            passed_over = {part for part in done - term.judged if self._data.examples(part)}
            assert not passed_over, f"parts {passed_over} were never done"

    def check_owners(self, term: Term, held: Held) -> None:
        """Every part that is dealt is computed by one who lives, or is held already."""
        assert held.dealer is not None
        pushes = held.pushes
        if isinstance(pushes, SyncPushes):
            assert pushes._step is not None
            live = pushes._step.decision.live
        else:
            live = pushes.live
        offered = {self._parts[number] for number in term.offered}
        owned = {part for part, owner in held.dealer.given.items() if owner not in live and owner != NO_RANK}
        stranded = owned - offered
        assert not stranded, f"nobody will do parts {stranded}"
