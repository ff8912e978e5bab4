"""The planted bugs of training without servers, of record indexes and of reading ahead that no test found when the
list was made.
"""

from mutant import bug

MULTI_WORKER = "strategies/multi_worker_mirrored"

AGREEING = [
    bug(
        "steps/leader.py",
        "RoundLeader.welcome",
        "if not (self._rules.passes_silent or all(map(self._knows_members, others))):\n    return frozenset()",
        says="a newcomer begins before all others know of it",
    ),
    bug(
        "steps/follower.py",
        "Follower._made_report",
        "self._reduced if attempt is not None and self._written >= attempt.written else 0",
        "self._reduced if attempt is not None else 0",
    ),
    bug("steps/follower.py", "Follower.heeds", "told.term >= self.term", "True"),
    bug(
        "roles/collective/lane_work.py",
        "MeansOverHosts.make",
        "None if given.weights is None else dict(enumerate(examples_of(parts)))",
        "None",
    ),
    bug(
        "roles/collective/lane_work.py",
        "LaneWork.run",
        "self._sums_after(before, job.version, job.sums)",
        "before",
    ),
    bug("collectives/ledger.py", "Ledger.write", "self._need(start, stop)"),
    bug(
        "parameters/store.py",
        "TwoSidedStore._next",
        "self._sides[(version + 1) % 2]",
        "self._sides[version % 2]",
        says="an update is made in the place of the version before it",
    ),
    bug("parameters/updater.py", "_GroupUpdate.make", "slot[...] = now[name][elements]"),
    bug("parameters/updater.py", "_TableUpdate.carry", "now[name][self._moved(block)] = array"),
    bug("parameters/store.py", "ShownVariables.show", "follow(replaced)"),
    bug(
        "protocol/tally.py",
        "Tally.after",
        "tally.add(version, sums)",
        "tally.add(version + 1, sums)",
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
