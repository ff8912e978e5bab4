"""What a spec may say of slow links."""

import pytest
from row_by_row import every_row

from dtrain.config import ClusterSection, LinkFault, PipelineSection, RunSpec, SimulateSection

CLUSTER = ClusterSection(chief=1, worker=2, ps=3, evaluator=1)


def problems(*links):
    spec = RunSpec(cluster=CLUSTER, simulate=SimulateSection(network=links))
    return [(".".join(map(str, path)), text) for path, text in spec.problems()]


@every_row(
    "between",
    [
        ("worker:0", "ps:1"),
        ("ps:2", "chief:0"),
        ("ps:0", "ps:2"),
        ("evaluator:0", "ps:0"),
        ("/job:worker/task:1", "ps/0"),
    ],
)
def test_links_that_carry_messages_may_be_slow(between):
    assert problems(LinkFault(between, 2.0, 1000.0)) == []


@pytest.mark.parametrize(
    ("between", "text"),
    [
        (("ps:1", "ps:1"), "expected two different tasks, found ps:1 twice"),
        (("worker:0", "chief:0"), "worker:0 and chief:0 never talk: expected a ps at one end"),
        (("ps:1", "ps:2"), "ps:1 and ps:2 never talk: servers and the evaluator talk to ps:0 alone"),
        (
            ("evaluator:0", "ps:1"),
            "evaluator:0 and ps:1 never talk: servers and the evaluator talk to ps:0 alone",
        ),
    ],
)
def test_links_that_carry_none_are_refused(between, text):
    assert problems(LinkFault(between, 2.0)) == [("simulate.network.0.between", text)]


@pytest.mark.parametrize(
    ("between", "text"),
    [
        (("chief:0", "worker:0"), None),
        (("worker:2", "worker:1"), None),
        (("worker:2", "chief:0"), None),  # a stage votes in the first one
        (("evaluator:0", "chief:0"), None),
        (
            ("worker:0", "worker:2"),
            "worker:0 and worker:2 never talk: a stage talks to its neighbours and to chief:0",
        ),
        (
            ("evaluator:0", "worker:1"),
            "evaluator:0 and worker:1 never talk: servers and the evaluator talk to chief:0 alone",
        ),
    ],
)
def test_stages_talk_to_their_neighbours_and_to_the_first_one(between, text):
    cluster = ClusterSection(chief=1, worker=3, evaluator=1)
    simulate = SimulateSection(network=(LinkFault(between, 2.0, 1000.0),))
    spec = RunSpec(cluster=cluster, training=PipelineSection(), simulate=simulate)
    expected = [] if text is None else [(("simulate", "network", 0, "between"), text)]
    assert list(spec.problems()) == expected


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_numbers_out_of_range_are_refused(number):
    found = problems(LinkFault(("worker:0", "ps:0"), number, number))
    assert [path for path, _ in found] == [
        "simulate.network.0.latency_ms",
        "simulate.network.0.bandwidth_mbit_s",
    ]
    assert problems(LinkFault(("worker:0", "ps:0"), 0.0, 0.0))[0][1] == "expected a number above 0, found 0.0"


def test_tasks_that_are_not_there_and_names_that_are_none_are_refused():
    assert [path for path, _ in problems(LinkFault(("worker:9", "ps"), 1.0))] == [
        "simulate.network.0.between.0",
        "simulate.network.0.between.1",
    ]


def test_a_link_is_described_once():
    twice = problems(LinkFault(("worker:0", "ps:0"), 1.0), LinkFault(("ps:0", "worker:0"), 2.0))
    assert twice == [("simulate.network.1.between", "the link of ps:0 and worker:0 is described twice")]
