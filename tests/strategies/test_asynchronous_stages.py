"""pipedream and pipedream_2bw against a reference that writes down which version computes what."""

import re
import time

import numpy as np
import pytest
from learning.pipeline_reference import reference_of_versions, reference_step
from learning.test_stages import ZOO, all_cuts, data_of, weights_of
from row_by_row import NIGHT, by_night
from strategies.stages_in_memory import END_S, StagesInMemory

from dtrain.checkpoints import list_checkpoints, open_checkpoint
from dtrain.learning.graphs.stages import StageNetwork, StageStep, segments_of
from dtrain.learning.losses import CategoricalCrossentropy, MeanSquaredError
from dtrain.learning.optimizers import SGD

STEPS, PER_EPOCH, BATCH, RATE = 14, 7, 6, 0.05
SETTINGS = {
    "pipedream": {"schedule": "pipedream"},
    "vertical sync": {"schedule": "pipedream", "vertical_sync": True},
    "microbatches": {"schedule": "pipedream", "microbatches": 2},
    "2bw": {"schedule": "pipedream_2bw", "microbatches": 4},
}


STACKS = ("dense", "normalized")
"""Models that the reference computes layer by layer. The others have branches, masks or layers that are computed
together: there the whole network computes each microbatch."""


def words_of(number):
    return [3, number, 0, 0, 1]


def whole_step(network, weights, x, y, loss, microbatches, words):
    [segment] = segments_of([range(len(network.graph.steps))], network.graph, [1])
    whole = StageNetwork(network, segment)
    gradients = {spec.name: np.empty(spec.shape, np.float32) for spec in whole.variables if spec.trainable}
    step = StageStep(whole, weights, gradients, loss, words)
    block = -(-len(x) // microbatches)
    for number, start in enumerate(range(0, len(x), block)):
        part = slice(start, start + block)
        step.forward(number, len(x[part]) / len(x), x[part], [])
        step.backward(number, step.judged(number, y[part], None))
    return gradients, step.result().state_updates, 0.0


def trained(
    name, ranges, settings, *, steps=STEPS, killed=(0, 0), folder=None, after=lambda stage, training: None
):
    network = ZOO[name]()
    x, y = data_of(network, steps * BATCH)
    loss = CategoricalCrossentropy() if name == "softmax" else MeanSquaredError()
    weights = dict(weights_of(network))

    def batch_of(number):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return x[rows], y[rows]

    pipeline = StagesInMemory(
        network, ranges, weights, SGD(RATE), steps=steps, steps_per_epoch=PER_EPOCH, **settings
    )
    pipeline.killed, pipeline.folder = killed, folder
    found = pipeline.run(batch_of, loss, words_of, after)
    stage_of = {
        spec.name: stage
        for stage, each in enumerate(segments_of(ranges, network.graph, [1] * len(ranges)))
        for spec in StageNetwork(network, each).variables
    }
    told = " ".join(pipeline.drivers[0]._reporter.warnings)
    back = re.search(r"goes back from step \d+ to the checkpoint of step (\d+)", told)
    expected = reference_of_versions(
        network,
        weights,
        [batch_of(number) for number in range(steps)],
        loss,
        words_of,
        stage_of,
        died=0 if back is None else int(back.group(1)),
        step=reference_step if name in STACKS else whole_step,
        stages=len(ranges),
        per_epoch=PER_EPOCH,
        rate=RATE,
        **settings,
    )
    return pipeline, found, expected


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", ZOO)
def test_every_cut_gives_the_bits_of_the_reference(name, settings):
    """By day every second cut where there are many, which two of the settings share with each other."""
    cuts = [each for each in all_cuts(ZOO[name]()) if 2 <= len(each) <= 4]
    if len(cuts) > 4 and not NIGHT:
        cuts = cuts[list(SETTINGS).index(settings) % 2 :: 2]
    for ranges in cuts:
        _, found, expected = trained(name, ranges, SETTINGS[settings])
        assert found.keys() == expected[-1].keys()
        wrong = [each for each in found if not np.array_equal(found[each], expected[-1][each])]
        assert not wrong, (ranges, wrong)


def cut_into(name, stages):
    graph = ZOO[name]().graph
    cuts = (each for each in all_cuts(ZOO[name]()) if len(each) == stages)
    return next(
        cut
        for cut in cuts
        if all(any(step.weights for step in graph.steps[each.start : each.stop]) for each in cut)
    )


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_staleness_of_stage_s_is_measured_and_it_keeps_so_many_versions(stages):
    """S - 1 - s but for the batches that fill the pipeline, of which there are as many in each epoch."""
    kept = [set() for _ in range(stages)]

    def look(stage, training):
        kept[stage] |= {id(each) for each in [training.store.values, *training.store._versions._older]}

    pipeline, _, _ = trained("normalized", cut_into("normalized", stages), SETTINGS["pipedream"], after=look)
    for stage, training in pipeline.trainings.items():
        most = stages - 1 - stage
        filling = dict.fromkeys(range(most), STEPS // PER_EPOCH)
        rest = STEPS - sum(filling.values())
        assert dict(training.parts.reporter.status.staleness_counts) == {**filling, most: rest}
        assert len(kept[stage]) == stages - stage


def test_with_vertical_sync_the_staleness_is_that_of_the_first_stage_everywhere():
    pipeline, _, _ = trained("normalized", cut_into("normalized", 3), SETTINGS["vertical sync"])
    for training in pipeline.trainings.values():
        assert dict(training.parts.reporter.status.staleness_counts) == {0: 2, 1: 2, 2: STEPS - 4}


def test_two_versions_are_all_that_2bw_keeps():
    buffers = {}

    def look(stage, training):
        buffers[stage] = 1 + len(training.store._versions._older)

    pipeline, _, _ = trained("normalized", cut_into("normalized", 4), SETTINGS["2bw"], after=look)
    assert buffers == dict.fromkeys(range(4), 2)
    for training in pipeline.trainings.values():
        assert dict(training.parts.reporter.status.staleness_counts) == {0: 1, 1: STEPS - 1}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_checkpoint_in_the_midst_is_one_version_of_all_stages_and_drains_nothing(settings, tmp_path):
    """The leader saves as often as it can; the bits stay those of a run that saves nothing."""

    def until_wanted(stage, training):
        if stage == 0 and training.global_step in (3, PER_EPOCH + 3):
            end_s = time.monotonic() + END_S
            while not training.boundary.wanted and time.monotonic() < end_s:
                time.sleep(0.002)

    ranges = cut_into("normalized", 3)
    _, found, expected = trained(
        "normalized", ranges, SETTINGS[settings], folder=tmp_path, after=until_wanted
    )
    assert all(np.array_equal(found[name], expected[-1][name]) for name in found)
    saved = list_checkpoints(tmp_path)
    assert len([each for each in saved if each.step % PER_EPOCH]) >= 2, "batches are in flight at these"
    for each in saved:
        with open_checkpoint(each.path) as checkpoint:
            for name, value in expected[each.step].items():
                assert np.array_equal(checkpoint.read(name), value), (each.step, name)


DEATHS = [("pipedream", message) for message in (5, 14, 23, 31, *by_night(*range(1, 35)))]
DEATHS += [("2bw", message) for message in (8, 27, 46, 59, *by_night(*range(1, 66)))]


@pytest.mark.parametrize(("settings", "message"), DEATHS)
def test_a_stage_may_die_at_any_message(settings, message, tmp_path):
    """From the newest checkpoint on, every example counts once: the bits are those of a pipeline that is filled anew there."""
    ranges, killed = cut_into("normalized", 3), (1 + message % 2, message)
    pipeline, found, expected = trained(
        "normalized", ranges, SETTINGS[settings], steps=4, killed=killed, folder=tmp_path
    )
    assert pipeline.messages >= message
    wrong = [name for name in found if not np.array_equal(found[name], expected[-1][name])]
    assert not wrong, (message, wrong)


def test_a_gradient_that_is_not_finite_is_left_out_where_it_appears_and_its_batch_counts_as_a_step():
    """NaN in the inputs of a batch makes every stage's gradient NaN; infinite targets those of all, too."""
    network = ZOO["normalized"]()
    x, y = data_of(network, STEPS * BATCH)
    bad = 3

    def batch_of(number):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return (np.full_like(x[rows], np.nan) if number == bad else x[rows]), y[rows]

    ranges, weights = cut_into("normalized", 3), dict(weights_of(network))
    pipeline = StagesInMemory(
        network, ranges, weights, SGD(RATE), steps=STEPS, steps_per_epoch=PER_EPOCH, schedule="pipedream"
    )
    found = pipeline.run(batch_of, MeanSquaredError(), words_of)
    assert all(np.isfinite(value).all() for value in found.values()), "moving averages too"
    for training in pipeline.trainings.values():
        assert training.global_step == STEPS
        assert len(training.parts.reporter.warnings) == 1


@pytest.mark.parametrize("policy", ["scale", "compensate"])
def test_stale_gradients_are_corrected_as_asynchronous_servers_do(policy):
    """In stage s of three a gradient is 2 - s versions old, but for the first ones."""
    settings = {**SETTINGS["pipedream"], "stale_gradients": policy}
    network, steps = ZOO["dense"](), 6
    ranges = cut_into("dense", 3)
    x, y = data_of(network, steps * BATCH)
    weights = dict(weights_of(network))
    stage_of = {
        spec.name: stage
        for stage, each in enumerate(segments_of(ranges, network.graph, [1] * len(ranges)))
        for spec in StageNetwork(network, each).variables
    }

    def batch_of(number):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return x[rows], y[rows]

    pipeline = StagesInMemory(
        network, ranges, weights, SGD(RATE), steps=steps, steps_per_epoch=steps, **settings
    )
    found = pipeline.run(batch_of, MeanSquaredError(), words_of)
    versions = [weights]
    for number in range(steps):
        stale = {name: min(number, 2 - stage) for name, stage in stage_of.items()}
        then = {name: versions[number - stale[name]][name] for name in weights}
        loss, words = MeanSquaredError(), words_of(number)
        gradients, _, _ = reference_step(network, then, *batch_of(number), loss, 1, words)
        newest = dict(versions[-1])
        for name, gradient in gradients.items():
            rate = RATE
            if policy == "scale":
                rate = RATE / max(1, stale[name])
            elif stale[name]:
                gradient = gradient + 0.04 * gradient * gradient * (newest[name] - then[name])
            newest[name] = newest[name] - rate * gradient
        versions.append(newest)
    for name, value in found.items():
        np.testing.assert_allclose(value, versions[-1][name], rtol=1e-5, atol=1e-7)
