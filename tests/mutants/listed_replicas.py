"""The planted bugs of training without servers, of record indexes and of reading ahead that no test found when the
list was made.
"""

from mutant import bug

BETWEEN_HOSTS = "collectives/between_hosts"
MULTI_WORKER = "strategies/multi_worker_mirrored"

AGREEING = [
    bug(
        f"{BETWEEN_HOSTS}/leader.py",
        "LeadingHost.welcome",
        "frozenset(new) if informed else frozenset()",
        "frozenset(new)",
        says="a new host begins before all others know of it",
    ),
    bug(
        f"{BETWEEN_HOSTS}/follower.py",
        "Following._has_mean",
        "self._summed and self._written >= self._needed",
        "self._summed",
    ),
    bug(
        f"{BETWEEN_HOSTS}/follower.py",
        "Following.heeds",
        "term >= self.term and leader_of(term) in self.hosts",
        "leader_of(term) in self.hosts",
    ),
    bug(
        "roles/collective/round.py",
        "HostMembership._newcomer",
        "for rank in live:\n    waiting &= self._board.offered[rank]",
    ),
    bug(
        "roles/collective/round.py",
        "Round._prepare_next",
        "self._orders.sums_after(self.version, self.sums)",
        "self._orders.sums_after(self.version + 1, self.sums)",
    ),
    bug("collectives/board.py", "Ledger.write", "self._need(start, stop)"),
    bug(
        "parameters/store.py",
        "TwoSidedStore._next",
        "self._sides[(version + 1) % 2]",
        "self._sides[version % 2]",
        says="an update is made in the place of the version before it",
    ),
    bug("parameters/updater.py", "_GroupUpdate.make", "slot[...] = now[name][elements]"),
    bug("parameters/updater.py", "_TableUpdate.carry", "now[name][self._moved(block)] = array"),
    bug("variables/shown_variables.py", "ShownVariables.show", "follow(replaced)"),
    bug(
        f"{MULTI_WORKER}/orders.py",
        "OrderBook.sums_after",
        "tally.add(version, each)",
        "tally.add(version + 1, each)",
    ),
    bug(
        f"{MULTI_WORKER}/membership.py",
        "LeaderElection.is_over",
        "found[-1].step - state.lineage.first_step",
        "found[-1].step",
    ),
]

READING = [
    bug("data/record_index/addressing.py", "surviving", "_holds(kept[:-1], source, predicate)", "True"),
    bug("data/prefetching/tuning.py", "Forecast._from", "number < self.end", "number <= self.end"),
    bug(
        "data/prefetching/threads.py",
        "ReadAhead._next_to_read",
        "(begun + 1) * self._largest_bytes",
        "begun * self._largest_bytes",
    ),
]

SERVERS = [
    bug(
        "control/async_steps.py",
        "AsyncSteps.settled_below",
        "open_ += [batch for _, _, batch in self.repairs.unconfirmed.values()]",
    ),
]

FOUND = [*AGREEING, *READING, *SERVERS]
