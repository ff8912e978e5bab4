"""How the leader cuts a model, by layers that say how long they take."""

import pytest
from learning.test_costs import Clock, Takes
from learning.test_networks import two_inputs

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import PipelineSection, RunSpec, SimulateSection
from dtrain.config.choices import Schedule
from dtrain.config.simulate_section import LinkFault
from dtrain.errors import SpecError
from dtrain.learning import layers as L
from dtrain.learning import optimizers
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.stages import cut_before
from dtrain.process.assignment import TaskAssignment
from dtrain.protocol.partition_plan import StageLink
from dtrain.state.feed import Feed
from dtrain.strategies.interface import Computing, Problem
from dtrain.strategies.pipeline import planning

TASKS = (TaskId(Role.CHIEF, 0), TaskId(Role.WORKER, 0), TaskId(Role.WORKER, 1))


@pytest.fixture
def clock(monkeypatch):
    """The time of the planner, which layers move."""
    clock = Clock()
    monkeypatch.setattr(planning, "SYSTEM", type("Clock", (), {"now": staticmethod(clock)}))
    return clock


def problem_of(network, optimizer="sgd", batch_size=32):
    return Problem(
        variables=network.variables,
        initial_values=lambda: network.initial_values(0),
        optimizer=optimizers.serialize(optimizers.get(optimizer)),
        max_steps=1,
        feed=Feed(batch_size, 1, 1, 0, (), 0),
        computing=Computing(network),
    )


def planned(
    network, workers, *, simulate=None, problem=None, hosts=("127.0.0.1",) * 99, links=None, **section
):
    training = PipelineSection(**section)
    jobs = {Role.CHIEF: {0: f"{hosts[0]}:1"}}
    if workers:
        jobs[Role.WORKER] = {each: f"{hosts[each + 1]}:{each + 2}" for each in range(workers)}
    spec = RunSpec(training=training, simulate=simulate or SimulateSection())
    assignment = TaskAssignment(TASKS[0], ClusterSpec(jobs), spec, "run")
    return planning.planned_stages(problem or problem_of(network), assignment, training, links)


def begins_of(found):
    return tuple(each.layers[0] for each in found.stages)


def chain(clock, *seconds, width=3):
    first, *others = [Takes(clock, [each], [2 * each], name=f"takes_{n}") for n, each in enumerate(seconds)]
    return Network([L.Input((width,)), first, *others])


def test_stages_take_equally_long_by_the_clock_whatever_their_parameters(clock):
    network = chain(clock, 4, 1, 1, 1, 1)
    found = planned(network, 1)
    assert begins_of(found) == ("takes_0", "takes_1")
    assert [each.layers for each in found.stages] == [
        ("takes_0",),
        ("takes_1", "takes_2", "takes_3", "takes_4"),
    ]
    assert [(each.forward_s, each.backward_s) for each in found.stages] == [(4, 8), (4, 8)]
    assert found.examples == 4, "a microbatch of a batch of 32 that is cut into 8"
    # 8 microbatches of 12 s in 2 stages: 9 * 12 s
    assert found.to_dict(TASKS[:2])["steps_per_s"] == pytest.approx(1 / 108)


def test_a_slow_link_moves_the_cut_to_where_less_travels(clock):
    """From the third layer on an example has 1 number instead of 1000."""
    wide = [Takes(clock, [1], [1], name=f"wide_{n}") for n in range(2)]
    narrow = [Takes(clock, [1], [1], name=f"narrow_{n}") for n in range(2)]
    layers = [L.Input((1000,)), *wide, L.Dense(1), *narrow]
    assert begins_of(planned(Network(layers), 1)) == ("wide_0", "dense")
    slow = SimulateSection(network=(LinkFault(("chief:0", "worker:0"), bandwidth_mbit_s=0.01),))
    assert begins_of(planned(Network(layers), 1, simulate=slow)) == ("wide_0", "narrow_0")


def test_a_measured_link_counts_in_place_of_what_is_assumed_and_the_slower_way_to_the_leader_between_others(
    clock,
):
    wide = [Takes(clock, [1], [1], name=f"wide_{n}") for n in range(2)]
    narrow = [Takes(clock, [1], [1], name=f"narrow_{n}") for n in range(2)]
    network = Network([L.Input((1000,)), *wide, L.Dense(1), *narrow])
    fast, slow = StageLink(1e9), StageLink(1e3)
    assert begins_of(planned(network, 1, links={1: fast})) == ("wide_0", "dense")
    assert begins_of(planned(network, 1, links={1: slow})) == ("wide_0", "narrow_0")
    found = planned(network, 2, hosts=("a", "b", "c"), links={1: fast, 2: StageLink(1e5, 0.25)})
    assert found.pipeline.links == [fast, (1e5, 0.25)]
    found = planned(network, 2, hosts=("a", "b", "b"), links={1: slow, 2: slow})
    assert found.pipeline.links == [slow, (planning.ONE_HOST_BYTES_PER_S, 0)], "two tasks of one other host"


def test_layers_that_are_named_begin_the_stages_and_are_measured_too(clock):
    found = planned(chain(clock, 4, 1, 1, 1, 1), 1, stages=("takes_0", "takes_3"))
    assert begins_of(found) == ("takes_0", "takes_3")
    assert [each.forward_s for each in found.stages] == [6, 2]
    with pytest.raises(SpecError, match="no layer takes_9; did you mean takes_"):
        planned(chain(clock, 1, 1), 1, stages=("takes_0", "takes_9"))


def test_the_memory_of_a_stage_is_said_by_the_schedule(clock):
    """Adam has two slots for each parameter; a gradient and its sum are as large as a parameter."""
    network = Network([L.Input((10,)), L.Dense(20), L.Dense(30), L.Dense(5)])
    for schedule, flying in ((Schedule.GPIPE, [8, 8, 8]), (Schedule.ONE_F_ONE_B, [3, 2, 1])):
        found = planned(network, 2, problem=problem_of(network, "adam"), schedule=schedule)
        rows = found.to_dict(TASKS)["stages"]
        sizes = [4 * (10 * 20 + 20), 4 * (20 * 30 + 30), 4 * (30 * 5 + 5)]
        assert [row["parameter_bytes"] for row in rows] == sizes
        assert [row["slot_bytes"] for row in rows] == [2 * each for each in sizes]
        assert [row["in_flight"] for row in rows] == flying
        assert [row["leaving_bytes"] for row in rows] == [4 * 4 * 20, 4 * 4 * 30, None]
        assert [row["task"] for row in rows] == ["chief:0", "worker:0", "worker:1"]
        for row in rows:
            assert row["memory_bytes"] == 5 * row["parameter_bytes"] + row["activation_bytes"]
        for row, outputs in zip(rows, (20, 30, 5), strict=True):
            assert row["activation_bytes"] >= row["in_flight"] * 4 * 4 * outputs


def test_a_stage_fits_into_the_memory_of_the_task(clock, monkeypatch):
    network = Network([L.Input((100,)), *(L.Dense(100) for _ in range(4))])
    monkeypatch.setattr(planning, "own_limits", lambda name: [["300000"]])
    found = planned(network, 1)
    assert [len(each.layers) for each in found.stages] == [2, 2], "each layer needs 120 kB and more"
    monkeypatch.setattr(planning, "own_limits", lambda name: [["200000"]])
    with pytest.raises(SpecError, match=r"at most 4 stages.*none may need more than this process, 200 kB"):
        planned(network, 1)


def test_more_stages_than_there_are_cuts_are_refused_with_how_many_there_can_be(clock):
    network = Network([L.Input((6,)), L.Dense(7), L.Dropout(0.4), L.Dense(5), L.Dense(3)])
    with pytest.raises(SpecError, match=r"stages: 4: this model .* at most 3 stages .*: take --stages 3"):
        planned(network, 3)
    with pytest.raises(SpecError, match="at most"):
        planned(two_inputs(), 39)


def test_a_layer_that_fails_on_ones_is_named_with_the_remedy(clock):
    class Fails(L.Layer):
        def output_shape(self, input_shape):
            return input_shape

        def forward(self, weights, x, call):
            raise ValueError("no such word")

    with pytest.raises(
        SpecError, match=r"cannot be measured with ones of shape \(4, 3\): ValueError: no such"
    ):
        planned(Network([L.Input((3,)), L.Dense(3), Fails(), L.Dense(3)]), 1)


@pytest.mark.parametrize(
    ("make", "optimizer", "words"),
    [
        (
            lambda: Network([L.Dense(3, input_shape=(3,)), L.BatchNormalization(synchronized=True)]),
            "sgd",
            "leave it out",
        ),
        (
            lambda: Network([L.Dense(3, input_shape=(3,)), L.Dense(3)]),
            optimizers.SGD(global_clipnorm=1.0),
            "use clipnorm",
        ),
    ],
)
def test_what_no_stage_can_do_is_refused_with_the_remedy(clock, make, optimizer, words):
    network = make()
    with pytest.raises(SpecError, match=words):
        planned(network, 1, problem=problem_of(network, optimizer))


def test_a_stage_begins_at_an_allowed_place_in_every_model(clock):
    """A convolution and its pooling, and two uses of a layer, stay together whatever they cost."""
    from learning.test_stages import ZOO

    for make in ZOO.values():
        network = make()
        for workers in (0, 1):
            found = planned(network, workers)
            names = [name for each in found.stages for name in each.layers]
            assert names == [step.path for step in network.graph.steps if step.inputs]
            assert len(cut_before(network.graph, begins_of(found))) == workers + 1


def test_the_table_of_stages_fits_into_80_columns_and_says_what_is_predicted(clock):
    long = [Takes(clock, [1], [2], name=f"a_layer_with_a_very_long_name_{n}") for n in range(3)]
    lines = planned(Network([L.Input((3,)), *long]), 2).to_dict(TASKS)["lines"]
    assert max(map(len, lines)) <= 80
    assert [line.split(":")[0] for line in lines[:4]] == ["task", "chief", "worker", "worker"]
    # 8 microbatches of 3 s in 3 stages take 10 * 3 s, and each waits for 2 of 10
    assert "predicted: 0.0333 steps/s; bubble (S-1)/(m+S-1): 20% of a step" in lines
