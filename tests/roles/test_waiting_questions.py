"""Whatever happens: each question has the answer that a look at every open question after every message would
give it.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from roles.by_hand import TASKS, Hand

from dtrain.learning import optimizers
from dtrain.messages import Conclude, Control, Farewell, Hold, LookupRows, Mark, Pull, Reply, Snapshot
from dtrain.roles.parameter_server.questions import Questions


class ScanningQuestions(Questions):
    """A twin that looks at all of them."""

    def _to_look_at(self, held, now):
        return list(self.open)


def two_hands(**training):
    """The shipped server, and one with the twin."""
    hands = Hand(max_steps=6, **training), Hand(max_steps=6, **training)
    server = hands[1].servers[0]
    server._questions = ScanningQuestions(server.control, server._snapshots)
    return hands


class Run:
    """Acts on a server by hand; what a replica knows it has from the answers."""

    def __init__(self, hand):
        self.hand = hand
        self.orders = self.sequence = self.term = 0

    def pull(self, task, number):
        at_least = self.version + number // 4
        return self.hand.say(
            task,
            Pull(generation=1, at_least=at_least, wait_s=1.0 + number, term=self.term * (number % 2)),
            caller=f"{task} pulls",
        )

    def concluded(self, task, number):
        return self.hand.say(
            task,
            Pull(generation=1, at_least=6, wait_s=3.0, term=0, concluded=True),
            caller=f"{task} at the end",
        )

    def lookup(self, task, number):
        return self.hand.say(task, LookupRows(generation=1, tables=(), wait_s=2.0), caller=f"{task} looks up")

    def push(self, task, number):
        if self.hand.servers[0].held is None:
            return []
        self.sequence += 1
        base = max(0, self.version - number // 3)
        return self.hand.push(task, self.sequence, base, term=self.term, finite=number > 0)

    def step(self, task, number):
        """A push, and a pull where no ticket comes with its answer: what a replica does."""
        found = self.push(task, 1)
        without = any(isinstance(action.message, Reply) and not action.message.ticket for action in found[:1])
        return [
            *found,
            *(
                self.hand.say(
                    task, Pull(generation=1, at_least=0, wait_s=30.0, term=self.term), caller=f"{task} waits"
                )
                if without
                else ()
            ),
        ]

    def beat(self, task, number):
        return self.hand.beat(task, 0 if number == 0 else 1, leaving=number > 3)

    def initialise(self, task, number):
        self.term += number % 2
        version = min(self.version, 6)
        message = self.hand.initialisation(term=self.term, version=version)
        return self.hand.say("chief:0", message, self.hand.blocks())

    def hold(self, task, number):
        self.orders += 1
        return self.hand.say("chief:0", Hold(generation=1, number=(self.orders, 0)), caller="control")

    def release(self, task, number):
        self.orders += 1
        until = None if number % 2 else self.version + number
        rule = optimizers.serialize(self.hand.optimizer)
        order = Control(
            generation=1,
            number=self.term,
            term=(self.orders, 0),
            version=self.version,
            optimizer=rule,
            until=until,
            stop=number == 5,
        )
        return self.hand.say("chief:0", order, caller="control")

    def mark(self, task, number):
        return self.hand.say("chief:0", Mark(wait_s=2.0, term=self.term), caller="control")

    def snapshot(self, task, number):
        covers = self.version + number // 4, ()
        return self.hand.say(
            "chief:0",
            Snapshot(at_least=self.version, wait_s=2.0, number=self.sequence, covers=covers),
            caller="snapshot",
        )

    def conclude(self, task, number):
        return self.hand.say("chief:0", Conclude(generation=1), caller="control")

    def farewell(self, task, number):
        return self.hand.say("chief:0", Farewell(), caller="control") if number == 5 else []

    def disconnect(self, task, number):
        self.hand.servers[0].disconnected(task)
        return []

    def time(self, task, number):
        self.hand.now += number / 2
        return self.hand.tick()

    @property
    def version(self):
        return self.hand.version() if self.hand.servers[0].held else 0


OFTEN = ["step"] * 10 + ["pull"] * 3 + ["beat"] * 4
ONCE = [
    "push",
    "time",
    "initialise",
    "hold",
    "release",
    "concluded",
    "lookup",
    "mark",
    "snapshot",
    "conclude",
]
RARE = ["farewell", "disconnect"]
HISTORY = st.lists(
    st.tuples(st.sampled_from(OFTEN * 2 + ONCE * 2 + RARE), st.sampled_from(TASKS), st.integers(0, 5)),
    max_size=60,
)
RULES = st.sampled_from(
    [
        {"updates": "sync"},
        {"updates": "sync", "too_few": "shrink", "backup_workers": 1},
        {"updates": "sync", "too_few": "fail"},
        {"updates": "async"},
        {"updates": "async", "warmup_steps": 4},
        {"updates": "async", "staleness_bound": 1},
    ]
)


@settings(deadline=None, max_examples=240)
@given(HISTORY, RULES, st.booleans())
def test_each_question_is_answered_when_a_look_at_all_of_them_would_answer_it(history, rule, initialised):
    runs = [Run(hand) for hand in two_hands(**rule)]
    for act, task, number in [*([("initialise", "chief:0", 0)] * initialised), *history]:
        shipped, twin = (seen(getattr(run, act)(task, number)) for run in runs)
        assert shipped == twin, (act, task, number)


def seen(actions):
    """Answers in a form that can be compared."""
    return [repr(action) for action in actions]


def test_one_that_waits_for_a_version_is_told_at_once_that_too_few_are_left():
    hand = Hand(updates="sync", too_few="fail")
    hand.initialise()
    assert hand.pull("worker:0", at_least=1) == []
    answers = hand.beat("worker:1", 1, leaving=True)
    assert [answer.message.reason[:16] for answer in answers[1:]] == ["too few replicas"]


def test_one_that_waits_for_a_ticket_has_it_when_it_is_back():
    hand = Hand(updates="async")
    hand.initialise()
    hand.beat("worker:0", 1)
    hand.beat("worker:0", 1, leaving=True)
    assert hand.pull("worker:0") == []
    answers = hand.beat("worker:0", 1)
    assert [answer.message.ticket for answer in answers[1:]] == [True]
