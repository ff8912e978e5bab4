"""The loops of the golden files m5: a small model, a distributed dataset, a step in every replica."""

from types import SimpleNamespace

import numpy as np
from conformance.workers_in_threads import scope_in_thread

import dtrain as dt
from dtrain.data.experimental import AutoShardPolicy
from dtrain.distribute import get_replica_context
from dtrain.errors import DtrainError

PER_EXAMPLE = dt.losses.MeanSquaredError(reduction="none")


class Loop:
    """One case of a golden file, over one strategy.

    Attributes:
        steps: what each step saw and reduced.
        values: all weights after each step (loops inside a graph: each epoch), the first ones in front.
        found: whatever else a case says.
    """

    def __init__(self, strategy, case, x, y, folder):
        self.strategy, self.case, self.folder = strategy, case, folder
        self.x, self.y = x, y
        with scope_in_thread(strategy):
            self.model = _model(case, x.shape[1])
            self.optimizer = _optimizer(*case["optimizer"])
            self.optimizer.build(self.model.trainable_variables)
            self.metric = dt.metrics.MeanSquaredError()
        loops = strategy.loops
        self.here = slice(loops.first, loops.first + loops.replicas)  # this process's replicas among all
        self.steps, self.values, self.found = [], [self.flat()], {}

    def flat(self):
        return np.concatenate([self.model.arrays[name].reshape(-1) for name, _ in self.case["weights"]])

    def run(self):
        """Walk the dataset as the case says."""
        case, strategy = self.case, self.strategy
        if case.get("source") == "from_function":
            size = case["global_batch"] // strategy.num_replicas_in_sync
            dataset = strategy.distribute_datasets_from_function(
                lambda context: self.examples([["batch", size]])
            )
        else:
            dataset = strategy.experimental_distribute_dataset(self.examples(case["pipeline"]))
        walk = case["loop"].removesuffix("_in_function")
        for _ in range(case["epochs"]):
            iterator = iter(dataset)
            {"for": self.walk_for, "next": self.walk_next, "optional": self.walk_optional}[walk](iterator)
        self.found["iterations"] = int(self.optimizer.iterations)
        self.found["metric_MeanSquaredError"] = self.metric.result()

    def outcome(self):
        """What the loop has seen and made, as plain data."""
        return SimpleNamespace(steps=self.steps, values=self.values, found=self.found, here=self.here)

    def examples(self, steps):
        """The dataset of ``(x, y, number)`` that a pipeline of numbers makes."""
        count = self.case["examples"]
        rows = (self.x[:count], self.y[:count], np.arange(count))
        dataset = dt.data.Dataset.from_tensor_slices(rows)
        for name, *arguments in steps:
            dataset = getattr(dataset, name)(*arguments)
        if (policy := self.case.get("policy")) is not None:
            options = dt.data.Options()
            options.experimental_distribute.auto_shard_policy = AutoShardPolicy[policy]
            dataset = dataset.with_options(options)
        return dataset

    def walk_for(self, iterator):
        for batch in iterator:
            self.step(batch)

    def walk_next(self, iterator):
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                self.found["ended_by"] = "StopIteration"
                return
            self.step(batch)

    def walk_optional(self, iterator):
        while (optional := iterator.get_next_as_optional()).has_value():
            self.step(optional.get_value())
        again = iterator.get_next_as_optional()
        self.found["has_value_after_the_end"] = [optional.has_value(), again.has_value()]
        try:
            optional.get_value()
        except DtrainError:
            self.found["get_value_after_the_end"] = "InvalidArgumentError"

    def step(self, batch):
        strategy = self.strategy
        loss, per_example = strategy.run(self.in_replica, batch[:2])
        local = strategy.experimental_local_results
        self.steps.append(
            {
                "examples_of_replicas": [list(map(int, each)) for each in local(batch[2])],
                "loss_of_replicas": list(local(loss)),
                "loss_reduced_SUM": strategy.reduce("SUM", loss, axis=None),
                "per_example_reduced_SUM_axis_0": strategy.reduce("SUM", per_example, axis=0),
                "per_example_reduced_MEAN_axis_0": strategy.reduce("MEAN", per_example, axis=0),
            }
        )
        self.values.append(self.flat())

    def in_replica(self, x, y):
        """One step of one replica, as a program has it; return its loss, and that of each example."""
        kind = self.case["loss"]
        size = self.case["global_batch"]
        if kind != "average":
            size = len(x) * (
                get_replica_context().num_replicas_in_sync if kind == "mean_over_replicas" else 1
            )
        loss, gradients, outputs = self.model.value_and_gradients(
            PER_EXAMPLE, x, y, global_batch_size=size, return_outputs=True
        )
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.metric.update_state(y, outputs)
        per_example = PER_EXAMPLE(y, outputs)
        if kind != "average":
            with np.errstate(invalid="ignore"):  # as a program has it: NaN of no examples
                loss = per_example.sum() / np.float32(size)
        return loss, per_example


def _model(case, features):
    model = dt.Sequential([dt.Input((features,))])
    for number, (kind, arguments) in enumerate(case["layers"]):
        model.add(getattr(dt.layers, kind)(**arguments, name=f"l{number}"))
    ends = np.cumsum([0, *(np.prod(shape, dtype=int) for _, shape in case["weights"])])
    first = np.array(case["values"][0], np.float32)
    model.arrays = {
        name: first[start:stop].reshape(shape)
        for (name, shape), start, stop in zip(case["weights"], ends, ends[1:], strict=False)
    }
    return model


def _optimizer(name, arguments):
    return getattr(dt.optimizers, name)(**arguments)
