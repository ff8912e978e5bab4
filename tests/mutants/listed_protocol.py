"""The planted bugs of the list that mirrored tests found: the pure rules, the data and the steps of
training.
"""

from mutant import bug, void

SYNC_ROUND = "steps/machine.py"
DEALER = "protocol/part_dealer.py"
SEEN = "roles/parameter_server/update_rules.py"
GATE = "protocol/async_updates.py"
MEMBERSHIP = "protocol/membership.py"

SYNC = [
    bug(SEEN, "SyncRule.push", "push.base_version < self.version", "False"),
    bug(
        SYNC_ROUND,
        "StepMachine.decided",
        "tuple(self.complete[part] for part in sorted(self.complete))",
        "tuple(self.complete[part] for part in self.complete)",
        says="sums are taken in the order of arrival (once: both `sorted` dropped)",
    ),
    bug(SYNC_ROUND, "StepMachine.report", "len(holders) < self.servers", "0 not in holders"),
    bug(
        SYNC_ROUND,
        "StepMachine.report",
        "len(self.complete) >= dealer.parts or self.completed_by[rank] >= self.quota",
        "len(self.complete) >= dealer.parts",
    ),
    void(
        SYNC_ROUND, "resize: min(self.needed, needed) -> needed", "N0 stays what it was; nothing is resized"
    ),
    bug(
        SYNC_ROUND,
        "StepMachine.shortage",
        "possible = by_the_dead + len(self.live) * self.quota",
        "possible = len(self.live) * self.quota",
    ),
    bug(SYNC_ROUND, "StepMachine.report", "if version != self.version:\n    return"),
    bug(
        SYNC_ROUND,
        "StepMachine.decided",
        "NextVersion(contributors, len(contributors) + self._empty)",
        "NextVersion(contributors, parts)",
        says=(
            "the mean divides by N0 and not by the parts that count (once: the blocks scaled so that N "
            "divides)"
        ),
    ),
]

EXACTLY_ONCE = [
    bug(SEEN, "SeenPushes.lookup", "row if sequence == row.sequence else None", "None"),
    bug(SEEN, "SeenPushes.lookup", "sequence < row.sequence", "False"),
    bug(SEEN, "SeenPushes.lookup", "incarnation < row.incarnation", "False"),
    bug(SEEN, "SeenPushes.restore", "*", "return cls({})"),
    bug(
        SEEN,
        "SeenPushes.export",
        "*",
        "return [(name, row.incarnation, row.sequence) for name, row in sorted(self._rows.items())]",
        says="undecided rows are exported",
    ),
    bug(
        "protocol/applied_batches.py",
        "AppliedBatches.covers",
        "*",
        "return True",
        says="return True (once: SeenPushes.covers)",
    ),
]

ASYNC = [
    bug(
        GATE,
        "TicketGate.left",
        "end - self.accepted - len(self.holders)",
        "end - self.accepted - len(self.holders) + 1",
    ),
    bug(
        GATE,
        "TicketGate.request",
        "self.clocks[rank] > self._slowest() + self.staleness_bound",
        "self.clocks[rank] > self._slowest() + self.staleness_bound + 1",
    ),
    bug(
        GATE,
        "TicketGate.request",
        "self.clocks[rank] > self._slowest() + self.staleness_bound",
        "self.clocks[rank] >= self._slowest() + self.staleness_bound",
    ),
    bug(
        GATE, "TicketGate.warms_up", "self.accepted < self.warmup_steps", "self.accepted <= self.warmup_steps"
    ),
    bug(GATE, "TicketGate.leave", "self.holders.discard(rank)"),
    bug(GATE, "TicketGate._slowest", "min(self._ranks_at, default=0)", "0", says="the slowest clock is 0"),
    bug(
        "protocol/async_updates.py",
        "StalenessRule.judge",
        "staleness > self.max_staleness",
        "staleness >= self.max_staleness",
    ),
    bug("protocol/async_updates.py", "StalenessRule.judge", "max(1, staleness)", "(1 + staleness)"),
    bug(
        "protocol/async_updates.py",
        "DelayCompensation.compensate",
        "self._versions.get(rank) != base_version",
        "rank not in self._versions",
    ),
]

DEALING = [
    bug(
        DEALER,
        "PartDealer.give",
        "self.due.discard(part)",
        "if part % self.parts == rank:\n    self.due.discard(part)",
        says="a part that is another's is dealt twice (once: a lane advances for its own replica only)",
    ),
    bug(DEALER, "PartDealer.export", "[*self.due, *self.given, *waiting]", "[*self.due, *waiting]"),
    bug(DEALER, "PartDealer.export", "[*self.due, *self.given, *waiting]", "[*self.due, *self.given]"),
    bug("protocol/part_dealer.py", "Lanes.choose", "self.waiting + number - following < left", "True"),
    bug(
        DEALER,
        "PartDealer.lose",
        "if part not in complete:\n    self.give_back(part)",
        "if part not in complete:\n    self._take_back(part)",
        says="what a lost replica had does not come back",
    ),
    bug(
        DEALER,
        "Dealt.cut_into",
        "left |= {self.next // self.parts} if self.next % self.parts else set()",
        says=(
            "with another number of parts, what is left of a batch that was begun is lost (once: drop due "
            "+= [...] in `of`)"
        ),
    ),
    bug(
        DEALER,
        "PartDealer._next_of_batch",
        "rank >= self.parts or owner not in live or bool(self.parts_of.get(owner))",
        "rank >= self.parts",
        says="only those without a part of their own help others",
    ),
    bug(DEALER, "PartDealer.pushed", "*"),
    bug(DEALER, "PartDealer.repeat", "self.give_back(part)", "self.given.pop(part)"),
]

MEMBERS = [
    bug(MEMBERSHIP, "Membership.expire", "now > member.deadline_s", "False"),
    bug(
        MEMBERSHIP,
        "Membership.heartbeat",
        "process != member.process or member.state is MemberState.LOST",
        "process != member.process",
    ),
    bug(
        MEMBERSHIP,
        "Membership.heartbeat",
        "if process < member.process and member.state is MemberState.LIVE:\n    return None",
    ),
    bug(
        MEMBERSHIP,
        "Membership.heard_before",
        "member.deadline_s = min(member.deadline_s, now + self.lease_s)",
    ),
    bug(MEMBERSHIP, "Membership.leave", "MemberState.LEFT", "MemberState.LOST"),
]

TRAVELLING = [
    bug(
        "parameters/placement.py",
        "least_loaded",
        "loads.index(min(loads))",
        "len(loads) - 1 - loads[::-1].index(min(loads))",
        says="greedy takes the last of equals",
    ),
    bug("parameters/placement.py", "plan", "turn % servers", "shards[turn].variable % servers"),
]

DATA = [
    bug("data/grouping.py", "Batched.__init__", "-(-self.cardinality // size)", "self.cardinality // size"),
    bug(
        "training/parts.py",
        "PartStream._batch",
        "iterator.skip_to(index)",
    ),
    bug(
        "data/ordering.py",
        "Shuffled._entropy",
        "[self._seed, *iteration] if self._reshuffle else [self._seed]",
        "[self._seed]",
    ),
    bug(
        "training/steps.py",
        "chance_of",
        "np.random.default_rng([seed, batch, part, first_step, STEPS])",
        "np.random.default_rng()",
        says="a void step that is computed again draws other numbers (once: take_back does nothing)",
    ),
]

FOUND = [*SYNC, *EXACTLY_ONCE, *ASYNC, *DEALING, *MEMBERS, *TRAVELLING, *DATA]
