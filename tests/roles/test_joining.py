"""A worker that the cluster does not name joins: it ranks above all others, and computes parts of the same
batches.
"""

from roles.by_hand import TASKS, Hand, only

from dtrain.cluster import JOINING, TaskId
from dtrain.config import CheckpointSection, RunSpec, SecuritySection
from dtrain.messages import Farewell, Heartbeat, Join, JoinPlace, NotReady, Pull, Refusal, Values, Verdict
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.membership import LEASE_S
from dtrain.roles.joining import admission_by


def begun(**training):
    hand = Hand(**training)
    hand.initialise()
    for task in TASKS:
        hand.beat(task)
    return hand


def test_in_async_it_trains_from_its_first_pull_on():
    hand = begun(updates="async")
    hand.beat("worker:2")
    assert isinstance(only(hand.pull("worker:2")), Values)
    assert hand.parts["worker:2"] == 0
    assert only(hand.push("worker:2")).verdict is Verdict.ACCEPTED


def test_in_sync_a_batch_is_cut_as_before_and_the_new_worker_takes_its_turn():
    hand = begun(updates="sync")
    hand.beat("worker:5")
    for version, of_this_batch in enumerate((TASKS, ("worker:5", "chief:0", "worker:0"))):
        for task in of_this_batch:
            hand.pull(task)
            hand.push(task, base=version, sequence=version + 1)
        assert hand.version() == version + 1
    assert hand.servers[0].held.steps.dealer.export() == (3, 9, (6, 7, 8), False, ())


def test_one_that_asks_for_values_and_is_never_heard_of_is_waited_for_no_longer_than_a_lease():
    hand = begun(updates="sync")
    hand.pull("worker:2")
    for task in TASKS:
        hand.pull(task)
        hand.push(task)
    for task in ("worker:2", "chief:0", "worker:0"):
        hand.pull(task)
    for task in ("chief:0", "worker:0"):
        hand.push(task, base=1, sequence=2)
    assert hand.pull("worker:1", wait_s=60.0) == []
    hand.now += LEASE_S + 0.1
    for task in TASKS:
        hand.beat(task, incarnation=1, process=1)
    [answer] = hand.tick()
    assert (answer.caller, answer.message.part) == ("worker:1", 5)


def test_it_takes_the_place_of_one_that_is_lost():
    hand = begun(updates="sync")
    for task in TASKS:
        hand.pull(task)
    hand.push("chief:0")
    hand.push("worker:0")
    hand.beat("worker:2")
    assert hand.pull("worker:2", wait_s=60.0) == []
    hand.now += LEASE_S + 0.1
    for task in ("chief:0", "worker:0", "worker:2"):
        hand.beat(task, incarnation=1, process=1)
    [answer] = hand.tick()
    assert (answer.caller, answer.message.part) == ("worker:2", 2)
    hand.push("worker:2", part=2)
    assert hand.version() == 1


# Workers that know an address and the secret alone

SECRETS = RunSpec(
    name="digits",
    security=SecuritySection(key_file="own.key", secret_file="secret.txt"),
    checkpoint=CheckpointSection(remote="http://user:word@store/runs"),
)


def open_to_all(run_dir=None, **changes):
    """Servers of a run that admit workers, before the leader has come."""
    hand = Hand(servers=2, updates="async", **changes)
    for machine in hand.servers:
        task = TaskId.parse(f"ps:{machine.index}")
        launched = run_dir is not None
        assignment = TaskAssignment(
            task, hand.cluster, SECRETS, "r-1", run_dir, secret="s" * 16, launched=launched
        )
        machine.control.admission = admission_by(assignment)
    return hand


def ask(hand, message=None, server=0):
    return only(hand.say(str(JOINING), message or Join(), server=server))


def test_two_that_ask_at_once_get_different_indices_above_all_that_were_heard_of():
    hand = open_to_all()
    hand.initialise()
    hand.beat("worker:3")
    assert [ask(hand).index for _ in range(3)] == [2, 4, 5]


def test_a_control_host_that_was_started_again_gives_no_index_twice():
    hand = open_to_all()
    hand.initialise(heard_of=("worker:2", "worker:4", "chief:0", "no task"))
    assert [ask(hand).index for _ in range(2)] == [3, 5]


def test_no_index_is_given_beyond_the_workers_that_may_join(monkeypatch):
    monkeypatch.setattr("dtrain.control.roster.JOINED_MAX", 3)
    hand = open_to_all()
    hand.initialise()
    hand.beat("worker:2")
    hand.beat("worker:9")
    assert ask(hand).index == 3
    assert ask(hand).reason.startswith("run r-1 takes no more workers: 3 have")


def test_an_index_of_an_earlier_launch_or_of_a_folder_made_meanwhile_is_not_given(tmp_path):
    (tmp_path / "tasks/worker-2").mkdir(parents=True)
    hand = open_to_all(tmp_path)
    assert ask(hand).index == 3, "before training as well"
    hand.initialise()
    assert ask(hand).index == 4
    assert (tmp_path / "tasks/worker-3").is_dir()


def test_a_place_says_what_a_worker_needs_with_the_leaders_training_and_no_secret():
    hand = open_to_all(max_steps=7)
    hand.initialise()
    place = ask(hand)
    assert isinstance(place, JoinPlace)
    assert (place.run_id, place.launched, place.cluster) == ("r-1", False, hand.cluster.to_dict())
    assert (place.spec.name, place.spec.training) == ("digits", hand.servers[0].control.training)
    assert (place.spec.security, place.spec.checkpoint) == (SecuritySection(), CheckpointSection())


def test_another_server_tells_the_run_and_leaves_the_index_to_the_control_host():
    hand = open_to_all()
    hand.initialise()
    assert ask(hand, server=1).index == -1


def test_one_that_takes_the_control_plane_over_gives_indices(tmp_path):
    hand = open_to_all(tmp_path)
    assert ask(hand, server=1).index == -1
    hand.servers[1].control.take_over()
    assert [ask(hand, server=1).index for _ in range(2)] == [2, 3]


def test_by_hand_there_is_no_place_before_training_and_none_after_the_run():
    hand = open_to_all()
    assert isinstance(ask(hand), NotReady)
    hand.initialise()
    hand.say("chief:0", Farewell())
    assert ask(hand) == Refusal(reason="run r-1 is over")


def test_one_that_has_no_index_can_do_nothing_else_and_is_no_member():
    hand = open_to_all()
    hand.initialise()
    for message in (Pull(generation=1, at_least=0, wait_s=0.0), Heartbeat(process=(0, 1.0), incarnation=0)):
        assert isinstance(ask(hand, message), Refusal)
    roster = hand.servers[0].control.roster
    assert str(JOINING) not in {*roster.ranks, *roster.membership.members}
