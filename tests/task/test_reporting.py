"""A task's account of itself."""

import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import RunSpec
from dtrain.messages.membership import TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.runs import reporting
from dtrain.runs.files import RunFiles, read_record, write_record


@pytest.fixture
def reporter(monkeypatch):
    monkeypatch.setattr(reporting, "WAIT_SHOWN_AFTER_S", 0.0)
    cluster = ClusterSpec.from_lists(chief=["c:1"], worker=["w:1", "w:2"], ps=["p:1", "p:2"])
    made = reporting.Reporter(TaskAssignment.by_hand(cluster, TaskId.parse("worker:0"), {}))
    yield made
    made.close()


def test_who_waits_for_a_server_waits_for_those_whom_it_waits_for(reporter):
    reporter.behind("ps:0", "worker:0, worker:1")
    assert reporter.current().waiting_for is None
    reporter.waiting("ps:0")
    assert reporter.current().waiting_for == "worker:1 (at ps:0)"
    reporter.waiting("ps:1")
    assert reporter.current().waiting_for == "ps:1"
    reporter.behind("ps:0", None)
    reporter.waiting("ps:0")
    assert reporter.current().waiting_for == "ps:0"


def test_a_server_that_is_awaited_itself_is_named_once(reporter):
    reporter.behind("chief:0", "chief:0")
    reporter.waiting("chief:0")
    assert reporter.current().waiting_for == "chief:0"
    reporter.behind("chief:0", "chief:0, worker:1")
    assert reporter.current().waiting_for == "worker:1 (at chief:0)"


def test_a_name_is_made_only_for_a_wait_that_is_shown(reporter, monkeypatch):
    class Whom:
        made = 0

        def __str__(self):
            self.made += 1
            return "worker:1, gradient of step 3"

    whom = Whom()
    monkeypatch.setattr(reporting, "WAIT_SHOWN_AFTER_S", 60.0)
    for _ in range(3):
        reporter.waiting(whom)
        assert reporter.current().waiting_for is None
        reporter.waiting(None)
    assert whom.made == 0
    monkeypatch.setattr(reporting, "WAIT_SHOWN_AFTER_S", 0.0)
    reporter.waiting(whom)
    assert reporter.current().waiting_for == "worker:1, gradient of step 3"


def test_a_task_by_hand_waits_for_a_server_that_it_cannot_reach(reporter):
    reporter.unreached("ps:0", "p:1", "refused")
    assert reporter.current().waiting_for == "ps:0"
    reporter.unreached("ps:0", "p:1", None)
    assert reporter.current().waiting_for is None


def test_a_read_or_wait_that_has_not_ended_counts_in_the_shares(reporter, monkeypatch):
    now = reporting.time.monotonic() + 100
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now)
    reporter.progress(7, examples=8)
    reporter.current()
    reporter.activity.reading_since_s = now
    now += 4
    assert (reporter.current().input_share, reporter.current().waiting_share) == (1.0, 0.0)
    reporter.activity.reading_since_s = None
    reporter.activity.input_s += 5  # the last second is the only one that is new
    reporter.waiting("ps:0")
    now += 4
    said = reporter.current()
    assert (said.input_share, said.waiting_share) == (0.25, 1.0)


def test_a_wait_costs_no_span_where_nothing_is_traced(reporter, monkeypatch):
    spans = []
    monkeypatch.setattr(reporter.trace, "span", lambda *span: spans.append(span))
    reporter.waiting("ps:0")
    reporter.waiting(None)
    assert not spans
    monkeypatch.setattr(reporter.trace, "on", True)
    reporter.waiting("ps:0")
    reporter.waiting(None)
    assert [span[0] for span in spans] == ["wait"]


@pytest.mark.parametrize("place", ["writing", "before it"])
def test_the_last_account_is_written_though_the_order_to_stop_comes_in_the_midst_of_it(
    tmp_path, monkeypatch, place
):
    cluster = ClusterSpec.from_lists(chief=["c:1"], ps=["p:1"])
    assignment = TaskAssignment(TaskId.parse("ps:0"), cluster, RunSpec(), "run", tmp_path)
    made = reporting.Reporter(assignment)
    made.progress(step=400)
    orders = iter([SystemExit(143)])

    def interrupted(call):
        def first_ordered(*arguments):
            if order := next(orders, None):
                raise order
            call(*arguments)

        return first_ordered

    if place == "writing":
        monkeypatch.setattr(reporting, "write_record", interrupted(write_record))
    else:
        monkeypatch.setattr(made._stopped, "set", interrupted(made._stopped.set))
    with pytest.raises(SystemExit):
        made.close()
    last = read_record(RunFiles(tmp_path).status(assignment.task), TaskStatus)
    assert (last.step, last.phase) == (400, "finished")


def test_the_step_of_an_evaluation_stays_a_whole_number_in_its_file(tmp_path):
    write_record(
        tmp_path / "status.json",
        TaskStatus("evaluator:0", 1, "here", evaluation={"global_step": 400, "accuracy": 1.0}),
    )
    found = read_record(tmp_path / "status.json", TaskStatus).evaluation
    assert [(name, type(number)) for name, number in found.items()] == [
        ("global_step", int),
        ("accuracy", float),
    ]


def test_a_checkpoint_that_cannot_be_written_is_in_the_status_at_once_and_until_the_next_one(tmp_path):
    cluster = ClusterSpec.from_lists(chief=["c:1"], ps=["p:1"])
    made = reporting.Reporter(TaskAssignment(TaskId.parse("chief:0"), cluster, RunSpec(), "run", tmp_path))
    try:
        for step, failure, saved in ((5, None, 5), (10, "no room", 5), (15, "no room", 5), (20, None, 20)):
            made.tried_to_save(step, failure)
            said = read_record(RunFiles(tmp_path).status(TaskId.parse("chief:0")), TaskStatus)
            assert (said.unsaved, made.status.saved_step) == (failure, saved)
    finally:
        made.close()


def test_gradients_that_are_refused_are_told_of_at_the_first_tenth_and_hundredth(reporter, capsys):
    for number in range(250):
        reporter.refused(f"step {number}: the gradient holds NaN")
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("step ")[2] for line in told] == [
        "0: the gradient holds NaN; it was not applied",
        "9: the gradient holds NaN; it was not applied (10 so far)",
        "99: the gradient holds NaN; it was not applied (100 so far)",
    ]
