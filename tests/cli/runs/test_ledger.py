"""The rules of the goodput ledger, on timesheets of a clock that the tests set."""

import math
import random

import pytest
from row_by_row import every_row

from dtrain.messages import Verdict
from dtrain.runs.ledger import (
    CHECKPOINT,
    COMPUTE,
    INPUT,
    OTHER,
    SEND,
    SHEET_BYTES,
    WAIT,
    Attempt,
    Cause,
    Sheet,
    Timesheet,
    ledger_of,
    ledger_text,
)
from dtrain.runs.reporting import WaitedFor


class Replica:
    """A process of one replica whose clock stands still unless it `spends`."""

    def __init__(self, begun_s=0.0, stale=Cause.LATE):
        self.now_s = self.begun_s = begun_s
        self.memory = bytearray(SHEET_BYTES)
        self.sheet = Timesheet(self.memory, lambda: self.now_s, stale)

    def spends(self, for_s, state=None):
        if state is not None:
            self.sheet.to(state)
        self.now_s += for_s
        return self

    def begins(self, version=0):
        self.sheet.begins(version)
        return self

    def computes(self, version, for_s=1.0, verdict=Verdict.ACCEPTED, accepted=0):
        self.spends(for_s, COMPUTE).sheet.sends()
        self.spends(1e-7)
        self.sheet.judged(verdict, accepted, version)
        return self

    def attempt(self, *, lives=False, died=False):
        return Attempt(self.begun_s, None if lives else self.now_s, died, [Sheet.read(bytes(self.memory))])


def ledger(*attempts, left=True, now_s=None, final=True, **options):
    now_s = max(each.ended_s or 0.0 for each in attempts) if now_s is None else now_s
    lost = [] if left else [Attempt(now_s, now_s, False, [])]
    return ledger_of({"worker:0": [*attempts, *lost]}, now_s, final=final, **options)


def seconds(*attempts, **options):
    """What is not 0."""
    found = ledger(*attempts, **options)["seconds"]
    return {cause: pytest.approx(value) for cause, value in found.items() if value}


def test_every_second_has_one_cause_whatever_a_replica_does():
    chance = random.Random(7)
    replica = Replica(begun_s=100.0)
    replica.spends(chance.random()).begins()
    version = 0
    for _ in range(3000):
        replica.spends(chance.random(), chance.choice([INPUT, OTHER, CHECKPOINT, WAIT]))
        verdict = chance.choice(list(Verdict))
        version += verdict is Verdict.ACCEPTED
        version = chance.randrange(version) if verdict is Verdict.VOID and version else version
        replica.computes(version, chance.random(), verdict, chance.randrange(2))
        assert replica.sheet.to(SEND) == OTHER
    found = ledger(replica.attempt())
    assert sum(found["seconds"].values()) == pytest.approx(replica.now_s - 100.0, rel=1e-6)
    assert found["allocated_s"] == pytest.approx(replica.now_s - 100.0, rel=1e-6)
    assert all(value >= 0 for value in found["seconds"].values())


def test_waits_before_training_are_its_start_and_later_ones_are_waits():
    replica = Replica()
    replica.sheet.waits(on=True)
    replica.spends(5.0)
    replica.sheet.waits(on=False)
    replica.begins().spends(1.0, INPUT)
    replica.sheet.waits(on=True)
    replica.spends(2.0)
    replica.sheet.waits(on=False)
    replica.spends(4.0).spends(0.0, OTHER)
    assert seconds(replica.attempt()) == {"start": 5.0, "input": 5.0, "wait": 2.0}


@every_row(
    "verdict, stale, cause",
    [
        (Verdict.ACCEPTED, Cause.LATE, "good"),
        (Verdict.STALE, Cause.LATE, "late"),
        (Verdict.STALE, Cause.STALE, "stale"),
        (Verdict.STALE, Cause.RECOMPUTED, "recomputed"),
        (Verdict.REFUSED, Cause.LATE, "stale"),
        (Verdict.FINISHED, Cause.RECOMPUTED, "late"),
        (Verdict.VOID, Cause.LATE, "rolled_back"),
    ],
)
def test_a_verdict_says_what_became_of_a_part(verdict, stale, cause):
    replica = Replica(stale=stale).begins().computes(1, 3.0, verdict)
    assert seconds(replica.attempt()) == {cause: 3.0}


def test_of_several_parts_to_one_version_those_count_that_were_accepted():
    replica = Replica().begins().computes(0, 1.0, Verdict.PENDING).computes(0, 1.0, Verdict.PENDING)
    assert seconds(replica.computes(1, 1.0, accepted=2).attempt()) == {"good": 2.0, "late": 1.0}


def test_what_a_killed_process_was_computing_is_recomputed_and_what_it_had_sent_counts():
    computing = Replica().begins().computes(1).spends(0.25, COMPUTE)
    assert seconds(computing.attempt(died=True)) == {"good": 1.0, "recomputed": 0.25}
    waiting = Replica().begins().spends(1.0, COMPUTE)
    waiting.sheet.sends()
    waiting.sheet.waits(on=True)
    waiting.spends(0.5)
    assert seconds(waiting.attempt(died=True)) == {"good": 1.0, "wait": 0.5}
    assert seconds(computing.attempt(lives=True), now_s=2.0, final=False) == {"good": 2.0}


def test_between_two_processes_a_task_is_down_and_a_lost_one_to_the_end():
    first = Replica().begins().computes(1).attempt(died=True)
    again = Replica(begun_s=3.0).spends(0.5).begins(1).computes(2).attempt(died=True)
    assert seconds(first, again) == {"good": 2.0, "down": 2.0, "start": 0.5}
    assert seconds(first, again, left=False, now_s=10.0) == {"good": 2.0, "down": 7.5, "start": 0.5}


def test_a_process_that_came_not_so_far_as_to_train_was_starting():
    first = Replica().begins().computes(1).attempt(died=True)
    assert seconds(first, Attempt(2.0, 5.0, True, [])) == {"good": 1.0, "down": 1.0, "start": 3.0}


def test_a_return_takes_back_what_counted_above_it_also_of_the_dead():
    dead = Replica().begins()
    for version in range(1, 11):
        dead.computes(version)
    again = Replica(begun_s=dead.now_s).begins(4).computes(5)
    assert seconds(dead.attempt(died=True), again.attempt()) == {"good": 5.0, "rolled_back": 6.0}


def test_a_return_is_seen_by_those_that_live_through_it():
    replica = Replica().begins()
    for version in (1, 2, 3, 4):
        replica.computes(version)
    replica.computes(2, 0.5, Verdict.VOID).computes(3)
    assert seconds(replica.attempt()) == {"good": 3.0, "rolled_back": 2.5}
    unseen = Replica().begins().computes(1).computes(2).computes(3).computes(2)
    assert seconds(unseen.attempt()) == {"good": 2.0, "rolled_back": 2.0}


def test_who_comes_later_at_a_version_that_others_pass_takes_nothing_back():
    other = Replica().begins()
    for version in range(1, 11):
        other.computes(version)
    late = Replica(begun_s=4.5).begins(5).computes(11)
    tasks = {"worker:0": [other.attempt()], "worker:1": [late.attempt()]}
    assert ledger_of(tasks, 10.0, final=True)["seconds"]["rolled_back"] == 0


def test_of_a_run_that_has_failed_only_what_is_saved_is_good():
    replica = Replica().begins()
    for version in range(1, 11):
        replica.computes(version)
    assert seconds(replica.attempt(died=True), saved_step=7) == {"good": 7.0, "rolled_back": 3.0}


@every_row("steps", [511, 512, 513, 5000, 100_000])
def test_more_steps_than_there_is_room_for_lose_hardly_any_exactness(steps):
    replica = Replica().begins()
    for version in range(1, steps + 1):
        replica.computes(version, 0.001 + 0.001 * (version % 3))
    kept = steps * 2 // 3
    exact_s = sum(0.001 + 0.001 * (version % 3) for version in range(kept + 1, steps + 1))
    again = Replica(begun_s=replica.now_s).begins(kept).computes(kept + 1)
    found = ledger(replica.attempt(died=True), again.attempt())
    assert found["seconds"]["rolled_back"] == pytest.approx(exact_s, abs=0.001 * found["allocated_s"])


def test_a_thousand_returns_are_not_too_many():
    replica = Replica().begins()
    for _ in range(1000):
        replica.computes(1).computes(2).computes(0, 1.0, Verdict.VOID)
    found = ledger(replica.computes(1).attempt())["seconds"]
    assert sum(found.values()) == pytest.approx(3001.0)
    assert found["rolled_back"] == pytest.approx(3000.0, rel=0.01)


def test_several_replicas_of_a_process_count_each():
    replica = Replica().begins().computes(1)
    sheet = Sheet.read(bytes(replica.memory))
    found = ledger(Attempt(0.0, 2.0, False, [sheet, sheet]))
    assert (found["allocated_s"], found["tasks"][0]["replicas"]) == (4.0, 2)
    assert found["share"] == 0.5


def test_the_clock_of_another_host_is_laid_on_the_launchers():
    replica = Replica(begun_s=70_000.0).begins().computes(1)
    sheet = Sheet.read(bytes(replica.memory)).within(5.0, 6.0)
    assert seconds(Attempt(5.0, 6.0, False, [sheet])) == {"good": 1.0}
    assert Sheet.read(bytes(replica.memory)).within(69_999.9, 70_001.0).begun_s == 70_000.0


def test_nothing_has_trained():
    assert ledger(Replica().spends(3.0).attempt()) is None
    assert ledger_of({}, 1.0, final=True) is None


def test_those_waited_for_longest_are_named_first():
    replica = Replica().begins().computes(1)
    replica.sheet.waited_for({f"worker:{number}": float(number) for number in range(1, 200)})
    names = ledger(replica.attempt())["waited_for"]
    assert next(iter(names.items())) == ("worker:199", 199.0)
    assert len(names) <= 199


@every_row(
    "data",
    [b"", b"{}", bytes(SHEET_BYTES), b"\xff" * SHEET_BYTES, b"\x01" * SHEET_BYTES, bytes(SHEET_BYTES - 8)],
)
def test_a_file_that_is_no_timesheet_is_left_out(data):
    assert Sheet.read(data) is None


def test_a_cut_off_text_of_names_hides_no_seconds():
    replica = Replica().begins().computes(1)
    replica.memory[-4096:-4089] = b'{"ps:0"'
    assert seconds(replica.attempt()) == {"good": 1.0}


def test_a_timesheet_changed_at_random_is_read_or_left_out():
    chance = random.Random(3)
    replica = Replica().begins().computes(1).computes(2)
    for _ in range(500):
        data = bytearray(replica.memory)
        for _ in range(3):
            data[chance.randrange(400)] = chance.randrange(256)
        sheet = Sheet.read(bytes(data))
        if sheet is not None:
            found = ledger(Attempt(0.0, 5.0, True, [sheet]))
            assert found is None or all(map(math.isfinite, found["seconds"].values()))


def test_waits_are_shared_among_those_who_are_named_and_those_a_server_waits_for():
    waited = WaitedFor()
    waited.add("worker:1, worker:2, gradient of step 7", 2.0)
    waited.add("the members, the end of their step", 5.0)
    waited.add("ps:0", 4.0)
    assert waited.by_name() == {"worker:1": 1.0, "worker:2": 1.0, "ps:0": 4.0}
    for others in (["worker:3"], ["worker:3"], ["worker:3"], []):
        waited.sample("ps:0", others)
    assert waited.by_name() == {"worker:1": 1.0, "worker:2": 1.0, "worker:3": 3.0, "ps:0": 1.0}


def test_the_line_adds_up_to_a_hundred():
    third = dict.fromkeys(Cause, 0.0)
    third |= {Cause.GOOD: 1 / 3, Cause.WAIT: 1 / 3, Cause.RECOMPUTED: 1 / 3}
    text = ledger_text({"seconds": third, "allocated_s": 1.0, "waited_for": {"worker:2": 0.2, "ps:0": 0.1}})
    assert sorted(text.replace("goodput ", "").replace(": ", ", ").split(", "))[0].startswith("33.")
    numbers = [
        float(word) for word in text.replace(":", "").split() if word[0].isdigit()
    ]  # not that in brackets
    assert sum(numbers) == pytest.approx(100.0)
    assert "wait 33.3 % (20.0 % for worker:2)" in text
    even = {"seconds": third, "allocated_s": 1.0, "waited_for": {"worker:2": 0.16, "ps:0": 0.15}}
    assert "wait 33.3 %," in ledger_text(even), "no task is named where none has most of it"
    assert "recomputed for the dead 33." in text
