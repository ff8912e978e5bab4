"""Chance is part of what a step is: it follows from the seed, the call of `fit`, the batch and its part."""

import numpy as np
import pytest
from in_memory import InMemoryCluster

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

BATCH, STEPS = 6, 8
X = np.arange(BATCH * STEPS, dtype=np.float32).reshape(-1, 1)


class Drawing(dt.Sequential):
    """Notes what each part draws, by its first example; `fail_at` breaks off there."""

    def __init__(self, drawn, fail_at=None):
        super().__init__([dt.layers.Dense(1, input_shape=(1,))])
        self.drawn, self.fail_at = drawn, fail_at
        self.compile(dt.optimizers.SGD(0.0), "mse")

    def train_step(self, step):
        first = int(step.x[0, 0])
        if first == self.fail_at:
            raise SystemExit(1)
        self.drawn.append((first, step.rng.random()))
        return {"loss": step.loss_and_gradients()}


def train(model, **more):
    model.fit(X, X, batch_size=BATCH, shuffle=False, verbose=0, **more)


def alone(**training):
    drawn = []
    with SingleStrategy(training=dt.config.training_section(**training)).scope():
        model = Drawing(drawn)
    train(model)
    return drawn, model


def together(folder, replicas, servers=1, fail_at=None, **training):
    drawn = []
    InMemoryCluster(folder, replicas, servers, **training).run(lambda: Drawing(drawn, fail_at), train)
    return drawn


@pytest.mark.parametrize(
    ("replicas", "training"), [(3, {}), (2, {"updates": "async"})], ids=["sync", "async"]
)
def test_every_part_draws_the_same_in_every_run_and_no_two_of_them_do(replicas, training, tmp_path):
    once, again = (together(tmp_path / str(servers), replicas, servers, **training) for servers in (1, 2))
    assert sorted(once) == sorted(again)
    parts = 1 if training else replicas
    assert len({value for _, value in once}) == len(once) == STEPS * parts


def test_one_replica_draws_what_one_process_does(tmp_path):
    assert together(tmp_path, 1) == alone()[0]
    assert sorted(together(tmp_path / "async", 2, updates="async")) == alone()[0]


def test_another_seed_and_another_call_of_fit_draw_something_else():
    drawn, model = alone(seed=1)
    train(model, epochs=2)
    values = [value for _, value in drawn + alone(seed=2)[0]]
    assert len(set(values)) == len(values) == STEPS * 4


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_who_goes_on_from_a_checkpoint_draws_what_it_would_have(updates, tmp_path):
    straight = together(tmp_path / "straight", 2, updates=updates)
    begun, drawn = [], []
    with pytest.raises(SystemExit):
        InMemoryCluster(tmp_path, 2, updates=updates).run(lambda: Drawing(begun, fail_at=BATCH * 5), train)
    resumed = InMemoryCluster(tmp_path, 3 if updates == "async" else 2, updates=updates)
    resumed.run(lambda: Drawing(drawn), train)
    assert dict(begun + drawn) == dict(straight)
    assert set(drawn) <= set(straight)
    if updates == "sync":  # an asynchronous leader that is slow may fail before the first step is saved
        assert len(drawn) < len(straight)
