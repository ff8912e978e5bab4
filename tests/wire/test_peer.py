"""A peer opens its connection again, within its patience, and says again what is unanswered, until it is given up."""

import pytest

from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Complete, NotReady, Pull, Subscribe
from dtrain.wire.frames import Frame
from dtrain.wire.peer import ATTEMPT_S, PAUSE_S, Peer

QUESTION = Pull(generation=1, at_least=0, wait_s=5.0)
ANSWER = NotReady(reason="not yet")
LOST = PeerLostError("lost ps:0")
AWAY = WaitTimeoutError("ps:0 did not accept a connection")


class Clock:
    """Time passes only when a peer sleeps or connects."""

    def __init__(self):
        self.seconds = 100.0

    def now(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


class Line:
    """A connection with what it answers: messages, errors, or something to be done first."""

    peer = "ps:0"

    def __init__(self, *answers, clock=None):
        self.answers = list(answers)
        self.sent = []
        self.aborted = None
        self.closed = False
        self.clock = clock

    def send(self, message, blocks=()):
        self.sent.append((message, *blocks))

    def receive(self, into=(), deadline=None):
        while True:
            if self.aborted:
                raise PeerLostError(self.aborted)
            if not self.answers:
                self.clock.seconds = max(self.clock.seconds, deadline)
                raise WaitTimeoutError("ps:0 did not answer in time")
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            if not callable(answer):
                return Frame(answer)
            answer()

    def abort(self, reason):
        self.aborted = reason

    def close(self):
        self.closed = True


class Watched(Line):
    """A connection whose transport notices its loss."""

    def watch(self, lost):
        self.lost = lost


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def to(clock):
    """A peer that finds these connections one after the other, or an error where one stands instead."""

    def to(*lines, patience_s=10.0, **more):
        waiting = list(lines)

        def connect(within_s):
            line = waiting.pop(0) if waiting else AWAY
            if isinstance(line, Exception):
                clock.sleep(within_s)
                raise line
            line.clock = clock
            return line

        return Peer("ps:0", connect, patience_s=patience_s, clock=clock, **more)

    return to


def test_the_first_question_opens_the_connection_without_a_pause(to, clock):
    line = Line(ANSWER)
    peer = to(line)
    peer.send(QUESTION)
    assert peer.receive().message == ANSWER
    assert (line.sent, clock.now()) == ([(QUESTION,)], 100.0)


def test_a_question_is_said_again_with_its_blocks_until_it_is_answered_and_no_longer(to):
    first, second, third = Line(LOST), Line(LOST), Line(ANSWER, LOST)
    peer = to(first, second, third)
    peer.open(1.0)
    peer.send(QUESTION, ["blocks"])
    assert peer.receive().message == ANSWER
    assert first.sent == second.sent == third.sent == [(QUESTION, "blocks")]
    assert (first.closed, second.closed, third.closed) == (True, True, False)
    with pytest.raises(PeerLostError, match="lost ps:0"):
        peer.receive()
    assert peer.channel is None, "nothing is unanswered, so nothing is opened again"


def test_questions_that_follow_each_other_are_said_again_in_their_order_but_for_those_that_are_answered(to):
    first, second = Line(ANSWER, LOST), Line(ANSWER, ANSWER, LOST)
    peer = to(first, second)
    peer.open(1.0)
    for block in "abc":
        peer.send(QUESTION, [block], follows=True)
    assert [peer.receive().message for _ in range(3)] == [ANSWER] * 3
    assert first.sent == [(QUESTION, "a"), (QUESTION, "b"), (QUESTION, "c")]
    assert second.sent == [(QUESTION, "b"), (QUESTION, "c")]
    with pytest.raises(PeerLostError, match="lost ps:0"):
        peer.receive()


def test_before_each_attempt_to_open_it_again_there_is_a_pause(to, clock):
    peer = to(Line(LOST), Line(LOST), Line(ANSWER))
    peer.open(1.0)
    peer.send(QUESTION)
    peer.receive()
    assert clock.now() == pytest.approx(100.0 + 2 * PAUSE_S)


def test_what_is_told_is_said_once_and_not_at_all_without_a_connection(to):
    lost, new = Line(LOST), Line(ANSWER)
    peer = to(lost, new)
    peer.notify(QUESTION)
    peer.open(1.0)
    peer.notify(QUESTION)
    with pytest.raises(PeerLostError):
        peer.receive()
    peer.open(1.0)
    assert (len(lost.sent), new.sent) == (1, [])


@pytest.mark.parametrize("away", [AWAY, LOST, None])
def test_the_patience_has_an_end_whether_nothing_answers_or_everything_breaks(to, clock, away):
    lines = [LOST if away is LOST else AWAY] * 1000 if away else [Line(LOST) for _ in range(1000)]
    peer = to(Line(LOST), *lines, patience_s=10.0)
    peer.open(1.0)
    peer.send(QUESTION)
    with pytest.raises(PeerLostError, match="lost ps:0; it did not come back within 10 s"):
        peer.receive()
    assert clock.now() == pytest.approx(110.0, abs=ATTEMPT_S)


def test_an_answer_gives_the_next_break_all_the_patience_again(to, clock):
    peer = to(Line(LOST), *[AWAY] * 4, Line(ANSWER, LOST), *[AWAY] * 4, Line(ANSWER), patience_s=10.0)
    peer.open(1.0)
    for _ in range(2):
        peer.send(QUESTION)
        assert peer.receive().message == ANSWER
    assert clock.now() > 110.0


def test_a_connection_that_lasted_gives_the_next_break_all_the_patience_again(to, clock):
    lasting = [Line(lambda: clock.sleep(100.0), LOST) for _ in range(3)]
    peer = to(*lasting, Line(ANSWER))
    peer.open(1.0)
    peer.send(QUESTION)
    assert peer.receive().message == ANSWER


def test_a_refusal_is_final(to):
    peer = to(Line(LOST), PeerRefusedError("another run"))
    peer.open(1.0)
    peer.send(QUESTION)
    with pytest.raises(PeerRefusedError, match="another run"):
        peer.receive()


def test_a_question_that_is_not_answered_by_its_deadline_is_given_up_with_its_connection(to, clock):
    silent, new = Line(), Line(ANSWER)
    peer = to(silent, new)
    with pytest.raises(WaitTimeoutError, match="ps:0 did not answer in time"):
        peer.ask(QUESTION, deadline=105.0)
    assert (silent.closed, peer.channel) == (True, None)
    assert peer.ask(QUESTION, deadline=110.0).message == ANSWER, "no late answer is taken for this one's"


def test_a_deadline_also_ends_the_attempts_to_open_it_again(to, clock):
    peer = to(Line(LOST), patience_s=1000.0)
    with pytest.raises(PeerLostError, match="lost ps:0"):
        peer.ask(QUESTION, deadline=104.0)
    assert clock.now() == pytest.approx(104.0, abs=PAUSE_S)
    peer = to(patience_s=1000.0)
    with pytest.raises(WaitTimeoutError, match="did not accept a connection"):
        peer.ask(QUESTION, deadline=106.0)


def test_a_greeting_is_said_on_every_connection_instead(to):
    version = iter(range(10))
    greeted = [Line(LOST), Line(ANSWER)]
    peer = to(*greeted, greeting=lambda: [Subscribe(generation=1, version=next(version))])
    assert peer.receive().message == ANSWER
    peer.notify(Complete(generation=1, rank=0, incarnation=1, version=7, ordinal=0))
    assert greeted[0].sent == [(Subscribe(generation=1, version=0),)]
    assert greeted[1].sent[0] == (Subscribe(generation=1, version=1),)


def test_after_an_abort_nothing_is_opened_and_nothing_waits(to):
    line, late = Line(), Line(ANSWER)
    peer = to(line, late)
    peer.open(1.0)
    peer.send(QUESTION)
    peer.abort("the run has ended")
    for act in (peer.receive, lambda: peer.send(QUESTION), lambda: peer.open(1.0)):
        with pytest.raises(PeerLostError, match="the run has ended"):
            act()
    assert late.sent == []


def test_an_abort_while_a_connection_is_being_opened_is_not_forgotten(to):
    late = Line(ANSWER)
    peer = to(Line(LOST), late)
    peer.open(1.0)
    peer.send(QUESTION)
    opened = peer._connect
    peer._connect = lambda within_s: peer.abort("the run has ended") or opened(within_s)
    with pytest.raises(PeerLostError, match="the run has ended"):
        peer.receive()
    assert (late.sent, late.closed) == ([], True)


def test_a_connection_that_is_broken_on_purpose_is_asked_again(to):
    first, second = Line(), Line(ANSWER)
    peer = to(first, second)
    peer.open(1.0)
    peer.send(QUESTION)
    peer.break_with("ps:0 stands still")
    assert peer.receive().message == ANSWER
    assert second.sent == [(QUESTION,)]


# Peers together


def pair(to, one, other):
    peers = [to(*one), to(*other)]
    Peer.together(peers)
    for peer in peers:
        peer.open(1.0)
        peer.send(QUESTION)
    return peers


def test_what_another_server_has_not_heard_is_said_again_while_one_is_waited_for(to):
    broken, again = Watched(), Line(ANSWER)
    waiting = Line(lambda: broken.lost())
    peers = pair(to, (waiting, Line(ANSWER)), (broken, again))
    assert peers[0].receive().message == ANSWER
    assert again.sent == [(QUESTION,)]
    assert peers[1].receive().message == ANSWER


def test_a_loss_before_the_wait_is_mended_in_it(to):
    broken, again = Watched(), Line(ANSWER)
    peers = pair(to, (Line(ANSWER),), (broken, again))
    broken.lost()
    assert peers[0].receive().message == ANSWER
    assert again.sent == [(QUESTION,)]


def test_a_loss_without_a_question_is_mended_by_the_next_question(to):
    broken, again = Watched(ANSWER), Line(ANSWER)
    peers = pair(to, (Line(ANSWER, ANSWER),), (broken, again))
    assert [peer.receive().message for peer in peers] == [ANSWER, ANSWER]
    broken.lost()
    peers[0].send(QUESTION)
    assert peers[0].receive().message == ANSWER
    assert peers[1].channel is broken, "a server that is not needed is not waited for"
    peers[1].send(QUESTION)
    assert again.sent == [(QUESTION,)]


def test_the_loss_of_a_connection_that_was_replaced_wakes_no_wait(to):
    old, new = Watched(LOST), Watched(ANSWER)
    waiting = Line(lambda: old.lost(), ANSWER)
    peers = pair(to, (waiting,), (old, new))
    peers[1].receive()
    peers[1].send(QUESTION)
    assert peers[0].receive().message == ANSWER
    assert waiting.aborted is None
