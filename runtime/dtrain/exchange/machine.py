"""The calls of members that meet.

The rule *Calls* (docs/design/collectives.md#calls):

1. Calls are counted; the n-th call of a member meets the n-th of every other. A member is a replica of a loop
   of the program's own, or a part of a step.
2. A call says what it is and where it stands in the program. What all others say is read before an array is
   used, so that a call that differs raises in all, with both places.
3. What was given stays until it is forgotten. Where a part is computed again, its first calls are there, with
   those of all others; what it gives to them a second time is the same and is not taken.
4. A member that ends without a call for which another one waits raises in all. A part without examples makes
   no calls, and none waits for it.
"""

from collections.abc import Sequence

from dtrain.errors import CallsDifferError
from dtrain.exchange.calls import GivenCall, check_calls


class Exchange:
    """Calls, as one process knows them; a carrier may keep them elsewhere, by the methods before `wanted`.

    Attributes:
        members: in the order in which sums are taken.
        who: the word for a member in errors.
        round: of a step, of which the calls are.
    """

    def __init__(self, members: Sequence[int], who: str = "replica") -> None:
        self.members = members
        self.who = who
        self.begin(0)

    def begin(self, of_round: int) -> None:
        """Forget the calls of an earlier round."""
        self.round = of_round
        self._given: dict[int, dict[int, GivenCall]] = {}
        self._made: dict[int, int] = {}
        self._ended: dict[int, int] = {}

    def made(self, member: int) -> int:
        return self._made.get(member, 0)

    def ended(self, member: int) -> int | None:
        """Return of how many examples a member that has ended was; None: it may make more calls."""
        return self._ended.get(member)

    def call(self, member: int, number: int) -> GivenCall:
        return self._given[number][member]

    def give(self, member: int, number: int, given: GivenCall) -> None:
        """Take the next call of a member, unless it is there already."""
        if number == self.made(member):
            self._given.setdefault(number, {})[member] = given
            self._made[member] = number + 1

    def end(self, member: int, examples: int = 1) -> None:
        """Take no more calls of a member; one without examples takes part in none."""
        self._ended[member] = examples

    def forget(self, number: int) -> None:
        """Drop a call that every member has."""
        del self._given[number]

    # The rule

    def wanted(self, number: int) -> list[int]:
        """Return the members whose call `number` has to come.

        Raises:
            CallsDifferError: one has ended without that call, and another one waits in it.
        """
        late, without, waits = [], None, None
        for member in self.members:
            if self.made(member) > number:
                waits = member if waits is None else waits
            elif (ended := self.ended(member)) is None:
                late.append(member)
            elif ended and self.made(member) <= number:  # the last call may have come with the end
                without = member if without is None else without
        if waits is not None and without is not None:
            raise CallsDifferError(
                f"some {self.who}s made a different number of calls: {self.who} {waits} waits in "
                f"{self.call(waits, number).call}, and {self.who} {without} has ended without that call"
            )
        return late

    def given(self, number: int) -> list[GivenCall]:
        """Return what all members gave to a call of which none is wanted any more, in their order.

        Raises:
            CallsDifferError: they do not agree.
        """
        found = {each: self.call(each, number) for each in self.members if self.made(each) > number}
        check_calls({each: given.call for each, given in found.items()})
        return list(found.values())
