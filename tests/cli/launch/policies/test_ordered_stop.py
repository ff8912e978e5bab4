import signal

from hypothesis import given, settings
from hypothesis import strategies as st

from dtrain.cluster import Role, TaskId
from dtrain_cli.launch.policies.ordered_stop import RemainingTask, RunStop, due, reluctant

NAMES = ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
STEP_S = 0.25


def simulate(
    order: RunStop, leaves_after_s: dict[str, float], own_end_s: dict[str, float]
) -> list[tuple[float, str, int]]:
    """Every signal with its time, for tasks that leave so long after SIGTERM, or by themselves at a time."""
    told: dict[str, float] = {}
    there, sent, now_s = set(NAMES), [], order.at_s
    while there:
        assert now_s < 1000, "the stop never ends"
        for task, number in due(
            order, [RemainingTask(TaskId.parse(name), told.get(name)) for name in there], now_s
        ):
            name = str(task)
            sent.append((now_s, name, number))
            told.setdefault(name, now_s)
            if number == signal.SIGKILL:
                there.discard(name)
        for name in list(there):
            left_s = told.get(name, float("inf")) + leaves_after_s.get(name, 0.1)
            if now_s >= min(left_s, own_end_s.get(name, float("inf"))):
                there.discard(name)
        now_s += STEP_S
    return sent


def test_an_orderly_stop_goes_through_the_roles():
    sent = simulate(RunStop("stopped", 130, 0.0, 10.0, {}), {}, {})
    assert [(name, number) for _, name, number in sent] == [
        (name, signal.SIGTERM) for name in ("worker:0", "worker:1", "evaluator:0", "chief:0", "ps:0")
    ]


def test_who_ignores_sigterm_does_not_use_up_the_time_of_those_behind():
    sent = simulate(RunStop("stopped", 130, 0.0, 10.0, {}), {"worker:0": 1e9}, {})
    when = {(name, number): at_s for at_s, name, number in sent}
    assert when["chief:0", signal.SIGTERM] == 3.0
    assert when["worker:0", signal.SIGKILL] == 10.0


def test_who_has_used_half_of_its_time_is_known():
    chief, worker = (
        RemainingTask(TaskId.parse("chief:0")),
        RemainingTask(TaskId.parse("worker:0"), stop_s=1.0),
    )
    hasty = RunStop("stopped", 130, 1.0, 10.0, {})
    seen = {now_s: reluctant(hasty, [chief, worker], now_s) for now_s in (5.0, 6.0, 10.9, 11.0)}
    assert seen == {5.0: [], 6.0: [worker.task], 10.9: [worker.task], 11.0: []}
    patient, late = RunStop("succeeded", 0, 1.0, 10.0, {}), RemainingTask(TaskId.parse("ps:0"), stop_s=60.0)
    assert reluctant(patient, [chief, late], 64.0) == []
    assert reluctant(patient, [chief, late], 65.0) == [late.task]


def test_after_success_the_others_may_end_by_themselves():
    order = RunStop("succeeded", 0, 0.0, 2.0, {Role.WORKER: 5.0, Role.EVALUATOR: 60.0})
    sent = simulate(order, {}, {"worker:0": 1.0, "worker:1": 2.0, "evaluator:0": 30.0, "chief:0": 0.0})
    assert [(name, number) for _, name, number in sent] == [("ps:0", signal.SIGTERM)]


def test_the_evaluator_has_sixty_seconds_then_the_grace():
    order = RunStop("succeeded", 0, 0.0, 2.0, {Role.WORKER: 0.0, Role.EVALUATOR: 60.0})
    sent = simulate(order, {"evaluator:0": 1e9}, {"chief:0": 0.0})
    when = {(name, number): at_s for at_s, name, number in sent}
    assert when["evaluator:0", signal.SIGTERM] == 60.0
    assert when["evaluator:0", signal.SIGKILL] == 62.0
    assert when["ps:0", signal.SIGTERM] > 62.0


seconds = st.dictionaries(st.sampled_from(NAMES), st.floats(0, 100), max_size=5)


@settings(deadline=None, max_examples=150)
@given(
    state=st.sampled_from(["succeeded", "failed", "stopped"]),
    leaves=seconds,
    own_end=seconds,
    grace_s=st.floats(0, 20),
)
def test_everybody_goes_in_bounded_time_and_servers_last(state, leaves, own_end, grace_s):
    order = RunStop(
        state, 1, 0.0, grace_s, {Role.WORKER: 5.0, Role.EVALUATOR: 60.0} if state == "succeeded" else {}
    )
    sent = simulate(order, leaves, own_end)
    assert all(number in (signal.SIGTERM, signal.SIGKILL) for _, _, number in sent)
    terms = [name for _, name, number in sent if number == signal.SIGTERM]
    assert len(terms) == len(set(terms)), "SIGTERM is never repeated"
    last_s = max((at_s for at_s, _, _ in sent), default=0.0)
    assert last_s <= (65.0 + 4 * (grace_s + 2 * STEP_S) if state == "succeeded" else grace_s + STEP_S)
    if "ps:0" in terms:
        assert terms[-1] == "ps:0"
