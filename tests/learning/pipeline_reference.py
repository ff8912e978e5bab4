"""One process that computes microbatches in order, written down from the text: it shares the layers alone with dtrain."""

import numpy as np

from dtrain.learning.core import regularizers
from dtrain.learning.layers.base import Call


def reference_step(network, weights, x, y, loss, microbatches, words, replicas=None):
    """The gradient of a stack of layers, new values of what is not trained, and the loss.

    `replicas` has the names of variables whose stage has several of them, and how many: microbatches in turn.
    `words` are those from which the chance of the step follows; a layer's adds the microbatch, its place, and 2.
    """
    steps = network.graph.steps[1:]
    block = -(-len(x) // microbatches)
    penalties = [
        (regularizers.get(weight.regularizer), name) for step in steps for weight, name in step.trained
    ]
    total, updates = {}, {}
    lost = sum(penalty(weights[name]) for penalty, name in penalties if penalty is not None)
    for number, start in enumerate(range(0, len(x), block)):
        part, target = x[start : start + block], y[start : start + block]
        share = np.float32(len(part) / len(x))
        seen = {**weights, **updates}
        passed = []
        for place, step in enumerate(steps, 1):
            own = {weight.name: seen[name] for weight, name in step.weights}
            call = Call(True, np.random.default_rng([*words, number, place, 2]))
            part, cache = step.layer.forward(own, part, call)
            passed.append((step, own, cache, call))
            updates |= {f"{step.path}/{name}": np.array(value) for name, value in call.updates.items()}
        value, gradient = loss.value_and_gradient(target, part, None)
        lost += value * len(target) / len(x)
        gradient = gradient * share
        for step, own, cache, call in reversed(passed):
            places = {weight.name: np.zeros(weight.shape, np.float32) for weight, _ in step.trained}
            gradient = step.layer.backward(own, cache, gradient, places, call)
            for weight, name in step.trained:
                penalty = regularizers.get(weight.regularizer)
                if penalty is not None:
                    penalty.add_gradient(own[weight.name], places[weight.name], float(share))
                sums = total.setdefault(name, {})
                turn = number % (replicas or {}).get(name, 1)
                sums[turn] = sums[turn] + places[weight.name] if turn in sums else places[weight.name]
    return {name: added(sums) for name, sums in total.items()}, updates, lost


def added(sums):
    """The sums of replicas, added in their order."""
    result = sums[0]
    for turn in range(1, len(sums)):
        result = result + sums[turn]
    return result


def reference_of_versions(
    network,
    weights,
    batches,
    loss,
    words_of,
    stage_of,
    *,
    step,
    stages,
    per_epoch,
    rate,
    schedule,
    microbatches=1,
    vertical_sync=False,
    died=0,
):
    """All versions of an asynchronous pipeline by plain SGD; it has come back to version `died` from a checkpoint.

    `step` gives the gradients and new values of a batch, as `reference_step` does.
    Before stage s passes its n-th microbatch of an epoch forward, it has passed n - (S - 1 - s) of them back.
    """
    versions, running = [dict(weights)], {}
    for number, (x, y) in enumerate(batches):
        oldest = died if number >= died else 0
        begun = max(number - number % per_epoch, oldest)

        def version_at(stage, number=number, begun=begun, oldest=oldest):
            back = max(0, (number - begun) * microbatches - (stages - 1 - stage)) // microbatches
            return max(oldest, number - 1) if schedule == "pipedream_2bw" else begun + back

        seen = {
            name: versions[version_at(0 if vertical_sync else stage)][name]
            for name, stage in stage_of.items()
        }
        gradients, updates, _ = step(network, {**seen, **running}, x, y, loss, microbatches, words_of(number))
        running |= updates
        newest = {
            name: value - np.float32(rate) * gradients[name] if name in gradients else value
            for name, value in versions[-1].items()
        }
        versions.append({**newest, **running})
    return versions
