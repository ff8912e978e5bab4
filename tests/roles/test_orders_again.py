"""An order in a new term: what the servers went back to decides what of it comes again: rule
*Configuration changes* (docs/design/protocol.md#configuration-changes).
"""

import pytest
from roles.by_hand import Hand

from dtrain.errors import PeerLostError
from dtrain.learning import optimizers
from dtrain.messages import Control, Hold, Snapshot, SnapshotReply
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.order_driver import OrderDriver
from dtrain.wire.frames import Frame

ROW = {"loss": 0.5}
FAST, SLOW = (optimizers.serialize(optimizers.SGD(rate)) for rate in (0.5, 0.25))


class Line:
    """The leader's connection to a server driven by hand."""

    bytes_sent = bytes_received = 0

    def __init__(self, hand, server):
        self.hand, self.server, self.answers = hand, server, []

    def send(self, message, blocks=()):
        actions = self.hand.say("chief:0", message, blocks, self.server, "orders")
        self.answers += [action.message for action in actions if action.caller == "orders"]

    def receive(self, into=(), deadline=None):
        return Frame(self.answers.pop(0), ())

    def close(self):
        """Nothing is left open."""


class Gone(Line):
    """One to a machine that goes without a word: the kernel says nothing, and no answer comes."""

    gone, aborted = False, None

    def receive(self, into=(), deadline=None):
        if self.aborted:
            raise PeerLostError(self.aborted)
        assert not self.gone, "nobody says that the machine is gone"
        return super().receive(into, deadline)

    def abort(self, reason):
        self.aborted = reason


def leader(servers=2, **training):
    """Servers in their first term, which waits for an order, and the leader's way to give one."""
    hand = Hand(workers=0, servers=servers, max_steps=20, **{"updates": "sync", **training})
    hand.initialise(term=1, until=0, steps_per_epoch=2)
    return hand, process(hand)


def process(hand, incarnation=5):
    """A process of the leader, which has seen what is in force."""
    orders = OrderDriver(
        len(hand.servers), 1, incarnation, lambda task, timeout_s: Line(hand, task.index), 1.0
    )
    orders.poll()
    orders.ask_for_rows()
    return orders


def give(hand, orders, rate=FAST, *, reached=0, stop=False, until=None, value=None):
    values = [] if value is None else [hand.blocks(server, value) for server in range(len(hand.servers))]
    return orders.give(rate, term=orders.term, reached=reached, stop=stop, until=until, values=values)


def train(hand, to, term=1):
    """The chief alone makes all versions to this one; the decision reaches every server."""
    for base in range(hand.version(), to):
        for server in range(len(hand.servers)):
            hand.push("chief:0", base + 100 * term, base, 0, server, term=term, examples=1, part=base)
        follow(hand)


def follow(hand):
    """Tell the other servers what ps:0 has decided, and ps:0 what they hold."""
    first = hand.servers[0]
    for server in range(1, len(hand.servers)):
        _, reports = hand.servers[server].position()
        for report in reports:
            hand.say(f"ps:{server}", report)
        if (last := first.held.steps.last_commit) is not None:
            hand.say("ps:0", last, server=server)


def go_back(hand, version, term=2):
    """A new term from a checkpoint of this version; it waits for an order."""
    message = hand.initialisation(
        term=term, version=version, until=version, steps_per_epoch=2, dealt=(1, version, ())
    )
    for server in range(len(hand.servers)):
        hand.say("chief:0", message, hand.blocks(server, 1), server)


def kernels(hand):
    return [server.held.store.values[0][0].item() for server in hand.servers]


def rates(hand):
    return [server.held.store.optimizer.learning_rate for server in hand.servers]


def snapshots(hand):
    asked = [
        hand.say("chief:0", Snapshot(at_least=0, wait_s=0.0, term=1, number=9), server=server)
        for server in range(len(hand.servers))
    ]
    return [
        action.message for actions in asked for action in actions if isinstance(action.message, SnapshotReply)
    ]


def test_values_are_in_a_checkpoint_whole_or_not_at_all():
    """The version does not change when values are assigned: the cut has to know that they were."""
    hand, orders = leader()
    cut = Cut(sync=True, term=1)
    seen = []
    told = Line.send

    def send(line, message, blocks=()):
        told(line, message, blocks)
        replies = snapshots(hand)
        seen.append(
            (kernels(hand), cut.accept([r.state.version for r in replies], [r.assigned for r in replies]))
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Line, "send", send)
        give(hand, orders, value=7)
    assert any(len(set(found)) > 1 for found, _ in seen), "there was no moment at which some had them"
    assert all(whole == (len(set(found)) == 1) for found, whole in seen)
    assert seen[-1] == ([7.0, 7.0], True)


def test_values_that_a_server_has_yet_to_reach_are_not_lost_by_the_order_that_follows():
    hand, orders = leader()
    give(hand, orders)
    for server in range(2):
        hand.push("chief:0", 1, 0, 0, server, term=1, examples=1, part=0)
    _, reports = hand.servers[1].position()
    hand.say("ps:1", reports[0])
    assert (hand.version(0), hand.version(1)) == (1, 0), "the decision is under way to ps:1"
    give(hand, orders, value=7)
    give(hand, orders, SLOW)
    follow(hand)
    assert (kernels(hand), rates(hand)) == ([7.0, 7.0], [0.25, 0.25])
    assert len({reply.assigned for reply in snapshots(hand)}) == 1


def test_an_order_with_values_that_its_leader_did_not_live_to_give_everywhere_is_seen():
    hand, orders = leader()
    give(hand, orders, value=3)
    assert not process(hand, 6).torn
    for message in (
        Hold(generation=1, number=(6, 9)),
        Control(generation=1, number=(6, 9), term=1, version=0, optimizer=FAST),
    ):
        hand.say("chief:0", message, hand.blocks(1, 7) if isinstance(message, Control) else (), server=1)
    assert process(hand, 7).torn
    go_back(hand, 0)
    assert not process(hand, 8).torn


@pytest.mark.parametrize("servers", [1, 2])
def test_values_are_assigned_again_where_the_servers_go_back_to_their_version(servers):
    hand, orders = leader(servers)
    give(hand, orders, until=2)
    train(hand, 2)
    give(hand, orders, reached=2, value=7)
    give(hand, orders, SLOW, reached=2, until=4)
    go_back(hand, 2)
    assert set(kernels(hand)) == {1.0}
    assert orders.repeat_in(2)
    assert (set(kernels(hand)), set(rates(hand))) == ({7.0}, {0.25})
    assert not orders.repeat_in(2), "it was given in this term"
    assert not hand.servers[0].held.held_back


@pytest.mark.parametrize(("saved", "kernel"), [(0, 7.0), (2, 7.0), (3, 1.0)])
def test_the_values_of_an_earlier_order_are_assigned_again_where_the_checkpoint_may_lack_them(saved, kernel):
    """It may be of their version, and from just before them. One of a later version has them."""
    hand, orders = leader()
    give(hand, orders, until=2)
    train(hand, 2)
    give(hand, orders, reached=2, until=4, value=7)
    train(hand, 4)
    orders.give(SLOW, term=1, reached=4, stop=False, until=6, values=(), saved=saved)
    go_back(hand, 2)
    assert orders.repeat_in(2)
    assert kernels(hand) == [kernel] * 2
    assert rates(hand) == [0.5, 0.5]
    assert not hand.servers[0].held.held_back, "it goes on to the limit of the last order"
    train(hand, 4, term=2)
    assert rates(hand) == [0.25, 0.25]
    go_back(hand, 3, term=3)
    orders.repeat_in(3)
    assert kernels(hand) == [1.0, 1.0], "what the servers are given now has been assigned to"


def test_values_of_an_earlier_order_come_with_the_end_of_its_epoch_if_that_is_lost():
    hand, orders = leader()
    give(hand, orders, until=2)
    train(hand, 2)
    assert orders.record(1, 1, {0: ROW})
    give(hand, orders, reached=2, until=4, value=7)
    train(hand, 4)
    give(hand, orders, SLOW, reached=4, until=6)
    go_back(hand, 2)
    orders.repeat_in(2)
    assert (hand.servers[0].held.held_back, kernels(hand)) == (True, [1.0, 1.0])


@pytest.mark.parametrize("servers", [1, 2])
def test_further_back_only_what_is_no_value_comes_again_and_at_its_version(servers):
    """Training comes to the version again, and so do the callbacks that assigned the values."""
    hand, orders = leader(servers)
    give(hand, orders)
    train(hand, 3)
    give(hand, orders, SLOW, reached=3, value=7)
    go_back(hand, 2)
    orders.repeat_in(2)
    assert (set(kernels(hand)), set(rates(hand))) == ({1.0}, {0.5})
    train(hand, 3, term=2)
    assert (set(kernels(hand)), set(rates(hand))) == ({1.0}, {0.25})


def test_where_the_end_of_an_epoch_is_lost_nothing_is_made_before_the_leader_has_ended_it_again():
    hand, orders = leader()
    give(hand, orders, until=2)
    train(hand, 2)
    assert orders.record(1, 1, {0: ROW})
    give(hand, orders, reached=2, until=4, value=7)
    go_back(hand, 2)  # a checkpoint from before the end of the epoch was recorded
    orders.repeat_in(2)
    assert (hand.servers[0].held.held_back, kernels(hand)) == (True, [1.0, 1.0])
    give(hand, orders, reached=2, until=2)
    assert orders.record(2, 1, {0: ROW})
    give(hand, orders, reached=2, until=4, value=7)
    assert (hand.servers[0].held.held_back, kernels(hand)) == (False, [7.0, 7.0])


def test_a_stop_stays_at_its_step():
    hand, orders = leader()
    give(hand, orders)
    train(hand, 4)
    assert give(hand, orders, reached=4, stop=True) == (4, True)
    go_back(hand, 2)
    orders.repeat_in(2)
    train(hand, 3, term=2)
    assert hand.servers[0].held.max_steps == 4
    assert give(hand, orders, SLOW, reached=3, stop=True) == (4, True), (
        "an epoch that begins again says so again"
    )
    train(hand, 4, term=2)
    assert all(server.held.finished for server in hand.servers)


def test_an_order_that_meets_another_term_waits_until_the_leader_has_heard_of_it():
    hand, orders = leader()
    give(hand, orders)
    train(hand, 3)
    go_back(hand, 2)
    assert give(hand, orders, SLOW, reached=3, value=7) == (3, False)
    assert orders.waits
    assert (kernels(hand), rates(hand), hand.servers[0].held.held_back) == (
        [1.0, 1.0],
        [0.5, 0.5],
        True,
    )
    assert orders.repeat_in(2)
    assert not orders.waits
    train(hand, 3, term=2)
    assert (kernels(hand), rates(hand)) == ([1.0, 1.0], [0.25, 0.25])


def test_epochs_are_recorded_in_a_new_term_before_anything_was_ordered():
    hand, orders = leader()
    hand.initialise(term=2, until=0, steps_per_epoch=2)
    assert not orders.record(1, 1, {0: ROW}), "the term is over"
    assert not orders.repeat_in(2), "nothing was ordered"
    assert orders.record(orders.term, 1, {0: ROW})


@pytest.mark.parametrize(("beats", "anew"), [((1, 1), False), ((1, 2), True)])
def test_an_order_after_a_new_term_goes_to_no_machine_that_may_be_gone(beats, anew):
    hand = Hand(workers=0, servers=2, max_steps=20, updates="sync")
    hand.initialise(term=1, until=0, steps_per_epoch=2)
    lines = []

    def connect(task, timeout_s):
        lines.append(Gone(hand, task.index))
        return lines[-1]

    orders = OrderDriver(2, 1, 5, connect, 1.0)
    orders.poll()
    orders.ask_for_rows()
    for line in lines:
        line.gone = line.server == 1
    for term in beats:
        orders.heard_term(term)
    if anew:
        assert give(hand, orders, until=8)
        assert len(lines) > 2
    else:
        with pytest.raises(AssertionError, match="nobody says"):
            give(hand, orders, until=8)
