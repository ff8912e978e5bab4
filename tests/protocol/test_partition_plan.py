"""Where a pipeline is cut, judged by a search through every cut, and by schedules that one can add up by hand."""

import itertools
import random
from math import inf

import pytest

from dtrain.config.choices import Schedule
from dtrain.protocol.partition_plan import PipelineShape, StageLink, best_cut, predicted_step_s
from dtrain.protocol.pipeline_schedule import bubble
from dtrain.state.model_cost import ModelCost, joined

FLUSHES = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)
FAST = StageLink(inf)


def part(forward_s=1, backward_s=1, *, parameters=1, trained=0, kept=0, leaving=0, name="layer"):
    return ModelCost((name,), forward_s, backward_s, parameters, trained, kept, leaving)


def longest_of(parts, begins, pipeline, memory_max):
    """The longest time of a stage or link, written as the rule says it; infinite where the cut is not allowed."""
    stages = [parts[start:stop] for start, stop in itertools.pairwise([*begins, len(parts)])]
    count, longest = pipeline.microbatches, 0
    for stage, own in enumerate(stages):
        flying = count if pipeline.schedule is Schedule.GPIPE else min(count, len(stages) - stage)
        memory = sum(
            each.parameter_bytes + (2 + pipeline.slots) * each.trained_bytes + flying * each.kept_bytes
            for each in own
        )
        if memory > memory_max or not any(each.parameter_bytes for each in own):
            return inf
        trained_s = sum(each.trained_bytes for each in own) * pipeline.trained_s / count
        longest = max(longest, sum(each.forward_s + each.backward_s for each in own) + trained_s)
        if stage < len(stages) - 1:
            link = pipeline.links[stage]
            longest = max(longest, 2 * (own[-1].leaving_bytes / link.bytes_per_s + link.latency_s))
    return longest


@pytest.mark.parametrize("seed", range(300))
def test_no_other_cut_is_better(seed):
    chance = random.Random(seed)
    stages, n, count = chance.randint(1, 4), chance.randint(1, 9), 2 ** chance.randint(0, 3)
    parts = [
        part(
            chance.randint(0, 9),
            chance.randint(0, 9),
            parameters=chance.choice([0, 4, 5]),
            trained=chance.randint(0, 3),
            kept=chance.randint(0, 5),
            leaving=chance.randint(0, 40),
        )
        for _ in range(n)
    ]
    links = [StageLink(chance.choice([1, 2, 4, inf]), chance.choice([0, 0, 3])) for _ in range(stages - 1)]
    pipeline = PipelineShape(chance.choice(FLUSHES), count, links, 8.0, chance.randint(0, 2))
    memory_max = chance.choice([inf, inf, 60, 40])

    def longest(begins):
        return longest_of(parts, begins, pipeline, memory_max)

    every = [(0, *others) for others in itertools.combinations(range(1, n), stages - 1)]
    least = min(map(longest, every), default=inf)
    found = best_cut(parts, pipeline, memory_max)
    if least == inf:
        assert found is None
    else:
        assert longest(found) == least
        assert best_cut(parts, pipeline, memory_max) == found


def test_two_hundred_layers_are_cut_without_looking_at_every_cut():
    """There are more than 10**20 of them."""
    chance = random.Random(1)
    parts = [part(chance.random(), chance.random(), leaving=chance.randrange(10**6)) for _ in range(200)]
    for stages in (2, 4, 8, 16):
        pipeline = PipelineShape(Schedule.ONE_F_ONE_B, 32, [StageLink(1e8)] * (stages - 1))
        assert len(best_cut(parts, pipeline)) == stages


def test_a_cut_goes_where_a_slow_link_has_little_to_carry():
    """The even cut would send ten times as much."""
    parts = [part(1, 2, leaving=each) for each in (10, 100, 10, 0)]
    assert best_cut(parts, PipelineShape(Schedule.GPIPE, 8, [StageLink(1e9)])) == [0, 2]
    assert best_cut(parts, PipelineShape(Schedule.GPIPE, 8, [StageLink(10)])) in ([0, 1], [0, 3])


def test_the_first_stage_of_1f1b_keeps_the_most_microbatches():
    """Large activations go behind, where fewer are in flight; with gpipe there is no such place."""
    parts = [part(parameters=1, kept=each) for each in (4, 9, 9)]
    assert best_cut(parts, PipelineShape(Schedule.ONE_F_ONE_B, 8, [FAST]), memory_max=20) == [0, 1]
    assert best_cut(parts, PipelineShape(Schedule.GPIPE, 8, [FAST]), memory_max=20) is None


@pytest.mark.parametrize("schedule", FLUSHES)
def test_the_predicted_step_of_even_stages_has_the_bubble_of_the_book(schedule):
    for stages in range(1, 6):
        for count in range(stages, 10):
            step_s = predicted_step_s(
                [part(1, 2)] * stages, PipelineShape(schedule, count, [FAST] * (stages - 1))
            )
            assert step_s * (1 - bubble(stages, count)) == pytest.approx(3 * count)


def test_a_predicted_step_waits_for_the_slowest_stage_its_link_and_its_update():
    """Two microbatches: forward 1 and 3 s, back 2 and 4 s, a link that takes 10 s, by hand."""
    stages = [part(1, 2, trained=5, leaving=10), part(3, 4, trained=1)]
    # F0 at stage 0 ends at 1 and arrives at 11, F1 follows it on the link and arrives at 21. Stage 1: F0 ends
    # at 14, B0 at 18, which arrives at 28; F1 ends at 24, B1 at 28, which arrives at 38 and ends at 40.
    assert predicted_step_s(stages, PipelineShape(Schedule.ONE_F_ONE_B, 2, [StageLink(1)], trained_s=1)) == 45


def test_the_latency_of_a_link_is_paid_once_each_way_and_not_by_each_array():
    """Three microbatches, 1 s forward and back: they arrive at 11, 12, 13 s, are back at 25, 26, 27, and end at 28."""
    link = StageLink(inf, latency_s=10)
    assert predicted_step_s([part(1, 1)] * 2, PipelineShape(Schedule.GPIPE, 3, [link])) == 28


def test_the_costs_of_a_stage_are_the_sums_of_its_parts_and_what_leaves_the_last():
    parts = [ModelCost(("a",), 1, 2, 3, 4, 5, 6), ModelCost(("b",), 10, 20, 30, 40, 50, None)]
    assert joined(parts) == ModelCost(("a", "b"), 11, 22, 33, 44, 55, None)


def test_the_memory_of_a_stage_is_of_variables_slots_two_gradients_and_what_is_in_flight():
    three = PipelineShape(Schedule.ONE_F_ONE_B, 8, [FAST, FAST], slots=2)
    cost = part(parameters=1000, trained=100, kept=10)
    assert [three.memory(cost, stage) for stage in range(3)] == [1430, 1420, 1410]


def test_a_stage_with_replicas_takes_twice_the_work():
    parts = [part(1, 2)] * 3
    shape = PipelineShape(Schedule.ONE_F_ONE_B, 8, [FAST], replicas=[2, 1])
    assert best_cut(parts, shape) == [0, 2]
    assert shape.stage_of_task == [0, 0, 1]
    alike = predicted_step_s([part(1, 2)] * 2, PipelineShape(Schedule.ONE_F_ONE_B, 8, [FAST]))
    assert predicted_step_s([part(2, 4), part(1, 2)], shape) == alike


def test_an_asynchronous_step_takes_as_long_as_its_slowest_stage_or_link_and_keeps_versions():
    stages = [part(1, 2, parameters=1000, trained=100, kept=10, leaving=6), part(3, 4)]
    for schedule, count, kept in ((Schedule.PIPEDREAM, 1, 2), (Schedule.PIPEDREAM_2BW, 4, 2)):
        shape = PipelineShape(schedule, count, [StageLink(2)], slots=2)
        assert predicted_step_s(stages, shape) == 7 * count
        assert predicted_step_s(stages, shape._replace(links=[StageLink(1)])) == 12 * count
        assert shape.memory(stages[0], 0) == kept * 1000 + 4 * 100 + 2 * 10
    three = PipelineShape(Schedule.PIPEDREAM, 1, [FAST, FAST], slots=2)
    assert [three.memory(stages[0], stage) for stage in range(3)] == [3430, 2420, 1410]
