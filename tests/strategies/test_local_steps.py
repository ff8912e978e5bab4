"""Local steps on parameter servers: what a round computes, against one process and against plain arithmetic.

Rule *Rounds* (docs/design/protocol.md#rounds).
"""

import in_memory
import numpy as np
import pytest
from in_memory import Connection, InMemoryCluster, step_in_work

import dtrain as dt
from dtrain.config import CheckpointSection, OuterSection
from dtrain.errors import CheckpointError, SpecError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Push
from dtrain.strategies.parameter_server.local_steps import RoundRows
from dtrain.strategies.single import SingleStrategy
from dtrain.training.fits import fitting

EXAMPLES, BATCH, EPOCHS, H = 62, 6, 3, 4
"""11 batches an epoch, the last one of 2 examples: rounds of 4, 4 and 3 batches."""
ROUNDS = 3
OFTEN = CheckpointSection(every_steps=1, keep=100)

chance = np.random.default_rng(8)
X = chance.normal(size=(EXAMPLES, 5)).astype(np.float32)
Y = chance.integers(0, 3, EXAMPLES)


def network():
    layers = dt.layers
    model = dt.Sequential(
        [
            layers.Dense(8, activation="tanh", input_shape=(5,)),
            layers.Dropout(0.4),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )
    rate = dt.optimizers.schedules.ExponentialDecay(0.02, 5, 0.8)
    loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(dt.optimizers.Adam(rate, clipnorm=0.5), loss, metrics=["accuracy"])
    return model


def trained_twice(model):
    """Two calls of `fit`, the second on other data; the numbers of all epochs, and how many updates were
    made.
    """
    first = model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(X[:20], Y[:20]))
    second = model.fit(X[::-1], Y[::-1], batch_size=BATCH, epochs=1, verbose=0)
    return first.history, second.history, int(model.optimizer.iterations), model.get_weights()


@pytest.mark.parametrize(
    "more", [{}, {"local_steps": 100}, {"local_steps": 1, "outer": OuterSection(learning_rate=1, momentum=0)}]
)
def test_one_replica_is_one_process_to_the_bit(tmp_path, more):
    """With BatchNormalization, dropout, clipping, a schedule by steps, on any servers, over two calls of
    `fit`.
    """
    with SingleStrategy().scope():
        expected = trained_twice(network())
    cluster = InMemoryCluster(tmp_path, 1, 2, **{"local_steps": H, **more})
    [found] = cluster.run(network, trained_twice)
    assert found[:3] == expected[:3]
    for mine, alone in zip(found[3], expected[3], strict=True):
        np.testing.assert_array_equal(mine, alone)


@pytest.mark.parametrize("merged", [{"merge": "rda"}, {"compression": "bf16"}])
def test_what_is_not_trained_travels_as_values_beside_differences(tmp_path, merged):
    """The statistics of BatchNormalization, whose differences would be added to nothing."""
    with SingleStrategy().scope():
        *_, expected = trained_twice(network())
    *_, found = InMemoryCluster(tmp_path, 1, 2, local_steps=H, **merged).run(network, trained_twice)[0]
    for mine, alone in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, alone, rtol=0.05, atol=0.05)


def test_a_schedule_of_a_callback_reaches_the_optimizer_of_the_replicas(tmp_path):
    def body(model):
        slower = dt.callbacks.LearningRateScheduler(lambda epoch: 0.02 / (1 + epoch) ** 2)
        return model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[slower]).history["loss"]

    with SingleStrategy().scope():
        expected = body(plain_rate())
    assert InMemoryCluster(tmp_path, 1, 2, local_steps=H).run(plain_rate, body) == [expected]


def plain_rate():
    model = dt.Sequential([dt.layers.Dense(3, input_shape=(5,))])
    model.compile(dt.optimizers.Adam(0.02), dt.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


# Several replicas, against arithmetic

REPLICAS = 3
LOCAL_RATE, MOMENTUM = 0.05, 0.9


def line():
    """A linear model whose step counts, too: what is not trained is the mean over replicas."""

    def init(rng):
        return {"w": np.zeros(5, np.float32)}

    def gradients(weights, x, y):
        error = x @ weights["w"] - y
        return float(np.mean(error**2)), {"w": (2 * x.T @ error / len(y)).astype(np.float32)}

    model = dt.from_function(init, gradients)
    model.compile(dt.optimizers.SGD(LOCAL_RATE, momentum=MOMENTUM))
    return model


TARGET = (X @ np.arange(5) + 1).astype(np.float32)


def fit_line(model):
    data = dt.data.Dataset.from_tensor_slices((X, TARGET)).batch(BATCH)
    model.fit(data, epochs=EPOCHS, verbose=0)
    return np.array(model.arrays["w"], np.float64)


def by_hand(merge, replicas=REPLICAS):
    """The same in float64: each replica trains on its part of every batch of a round; `merge` is the
    servers'.
    """
    w, moments = np.zeros(5), [np.zeros(5) for _ in range(replicas)]
    batches = [(X[at : at + BATCH], TARGET[at : at + BATCH]) for at in range(0, EXAMPLES, BATCH)]
    for _ in range(EPOCHS):
        for first in range(0, len(batches), H):
            after, examples = [], []
            for replica in range(replicas):
                own, seen, steps = w.copy(), 0, 0
                for x, y in batches[first : first + H]:
                    size = -(-len(y) // replicas)
                    rows = slice(replica * size, min((replica + 1) * size, len(y)))
                    if not len(y[rows]):
                        continue
                    slope = 2 * x[rows].T @ (x[rows] @ own - y[rows]) / len(y[rows])
                    moments[replica] = MOMENTUM * moments[replica] - LOCAL_RATE * slope
                    own, seen, steps = own + moments[replica], seen + len(y[rows]), steps + 1
                after.append(own)
                examples.append((seen, steps))
            w = merge(w, after, examples)
    return w


def mean(w, after, examples):
    return np.mean(after, axis=0)


def mean_over_examples(w, after, examples):
    return np.average(after, axis=0, weights=[seen for seen, _ in examples])


def by_direction(w, after, examples):
    shares = np.array([seen**2 / steps for seen, steps in examples])
    differences = [own - w for own in after]
    lengths = np.array([np.linalg.norm(each) for each in differences])
    direction = sum(s * d / n for s, d, n in zip(shares, differences, lengths, strict=True))
    return w + np.average(lengths, weights=shares) * direction / np.linalg.norm(direction)


class DiLoCo:
    """w -= 0.7 (d + 0.9 buf), buf = 0.9 buf + d."""

    def __init__(self):
        self.buffer = 0.0

    def __call__(self, w, after, examples):
        difference = w - np.mean(after, axis=0)
        self.buffer = 0.9 * self.buffer + difference
        return w - 0.7 * (difference + 0.9 * self.buffer)


@pytest.mark.parametrize(
    ("merge", "settings", "tolerance"),
    [
        (mean, {}, 1e-4),
        (mean_over_examples, {"weighting": "examples"}, 1e-4),
        (DiLoCo(), {"outer": OuterSection()}, 1e-4),
        (by_direction, {"merge": "rda"}, 1e-4),
        (mean, {"compression": "bf16"}, 0.05),
        (mean, {"compression": "fp16"}, 0.01),
    ],
    ids=["mean", "examples", "diloco", "rda", "bf16", "fp16"],
)
def test_replicas_train_by_themselves_and_servers_merge(tmp_path, merge, settings, tolerance):
    cluster = InMemoryCluster(tmp_path, REPLICAS, 2, local_steps=H, **settings)
    found = cluster.run(line, fit_line)
    expected = by_hand(merge)
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=tolerance, atol=tolerance)


def test_a_round_sends_its_bytes_once(tmp_path):
    """The same examples with a push for every batch, and for every round."""

    def moved(folder, **settings):
        cluster = InMemoryCluster(folder, 2, 1, **settings)
        cluster.run(line, fit_line)
        held = cluster.servers[0].machine.held
        return held.version

    assert moved(tmp_path / "1") == 11 * EPOCHS
    assert moved(tmp_path / "2", local_steps=H) == ROUNDS * EPOCHS


def test_epochs_callbacks_and_history_are_those_of_rounds(tmp_path):
    seen = []

    class Seen(dt.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

    def body(model):
        history = model.fit(
            X, Y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[Seen()], validation_data=(X, Y)
        )
        return history.epoch, sorted(history.history)

    [first, second] = InMemoryCluster(tmp_path, 2, 1, local_steps=H).run(network, body)
    assert first == second == ([0, 1], ["accuracy", "loss", "val_accuracy", "val_loss"])
    assert seen == [0, 1, 2] * 2


class Spoiled(dt.Sequential):
    """Has one gradient that is not finite, in the second batch of the second round."""

    made = 0

    def train_step(self, step):
        logs = super().train_step(step)
        self.made += 1
        if self.made == H + 2:
            next(iter(step.gradients.values()))[...] = np.nan
        return logs


def test_a_gradient_that_is_not_finite_makes_its_round_count_for_nothing(tmp_path):
    """And the moments of the replica stay sound: what follows is finite."""

    def build():
        model = Spoiled([dt.layers.Dense(3, input_shape=(5,))])
        model.compile(dt.optimizers.Adam(0.02), dt.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    def body(model):
        model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0)
        return model.made, model.get_weights()

    [(made, weights)] = InMemoryCluster(tmp_path, 1, 1, local_steps=H).run(build, body)
    assert all(np.isfinite(each).all() for each in weights)
    assert made == 11 * EPOCHS - 2 + H - 1 + 1, (
        "the round ends there, and the first of the next pass takes its place"
    )


def test_a_moving_average_is_that_of_the_servers_over_rounds(tmp_path):
    """It is as old as one over as many steps: the momentum is that of a round's steps together."""

    def build():
        model = line()
        model.compile(dt.optimizers.SGD(LOCAL_RATE, use_ema=True, ema_momentum=0.9))
        return model

    found = InMemoryCluster(tmp_path, 1, 1, local_steps=11).run(build, fit_line)
    w, average = np.zeros(5), np.zeros(5)
    for _ in range(EPOCHS):
        for at in range(0, EXAMPLES, BATCH):
            x, y = X[at : at + BATCH], TARGET[at : at + BATCH]
            w = w - LOCAL_RATE * 2 * x.T @ (x @ w - y) / len(y)
        average = 0.9**11 * average + (1 - 0.9**11) * w
    np.testing.assert_allclose(found[0], average, rtol=1e-4)


def test_asynchronous_rounds_use_the_momentum_once_for_as_many_pushes_as_replicas(tmp_path):
    """With one replica a push is a step: w -= lr d; buf = mu buf + d; w -= lr mu buf."""
    outer = OuterSection(learning_rate=0.5, momentum=0.8, delayed=True)
    cluster = InMemoryCluster(tmp_path, 1, 2, updates="async", local_steps=H, outer=outer)
    buffer = np.zeros(5)

    def merge(w, after, examples):
        nonlocal buffer
        difference = w - after[0]
        buffer = 0.8 * buffer + difference
        return w - 0.5 * difference - 0.5 * 0.8 * buffer

    [found] = cluster.run(line, fit_line)
    np.testing.assert_allclose(found, by_hand(merge, replicas=1), rtol=1e-4, atol=1e-4)


# Stops, and what cannot be


def stopped_at(at):
    """A model that ends its process before it computes in this round."""

    class Stopped(dt.Sequential):
        def train_step(self, step):
            if step_in_work(step) == at and self.strategy.is_leader:
                raise SystemExit(143)
            return super().train_step(step)

    model = Stopped([dt.layers.Dense(3, input_shape=(5,))])
    model.compile(dt.optimizers.SGD(0.02), dt.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit_all(model):
    return model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0).history["loss"], model.get_weights()


@pytest.mark.parametrize("step", [1, ROUNDS, 2 * ROUNDS + 1])
def test_a_resume_goes_on_at_the_same_round(step, tmp_path):
    """Without moments the bits are those of an undisturbed run."""
    [expected, _] = InMemoryCluster(tmp_path / "straight", 2, 2, OFTEN, local_steps=H).run(
        lambda: stopped_at(-1), fit_all
    )
    with pytest.raises(SystemExit):
        InMemoryCluster(tmp_path, 2, 2, OFTEN, local_steps=H).run(lambda: stopped_at(step), fit_all)
    [found, _] = InMemoryCluster(tmp_path, 2, 1, OFTEN, local_steps=H).run(lambda: stopped_at(-1), fit_all)
    assert found[0] == expected[0]
    for mine, straight in zip(found[1], expected[1], strict=True):
        np.testing.assert_array_equal(mine, straight)


@pytest.mark.parametrize(
    ("now", "said"),
    [({"local_steps": 3}, "local_steps 4, now 3"), ({}, "local_steps 4, now 1")],
)
def test_a_resume_with_other_rounds_is_refused(now, said, tmp_path):
    with pytest.raises(SystemExit):
        InMemoryCluster(tmp_path, 1, 1, OFTEN, local_steps=H).run(lambda: stopped_at(2), fit_all)
    with pytest.raises(CheckpointError, match=said):
        InMemoryCluster(tmp_path, 1, 1, OFTEN, **now).run(lambda: stopped_at(-1), fit_all)


def test_rates_that_make_the_loss_grow_are_named(tmp_path, capsys):
    def body(model):
        model.compile(dt.optimizers.SGD(0.4))
        model.fit(dt.data.Dataset.from_tensor_slices((X, TARGET)).batch(BATCH), epochs=4, verbose=0)

    outer = OuterSection(learning_rate=1.5, momentum=0.0)
    InMemoryCluster(tmp_path, 1, 1, local_steps=H, outer=outer).run(line, body)
    said = capsys.readouterr()
    assert "training.outer.learning_rate is 1.5, perhaps too large" in said.out + said.err


# Tables that travel by rows

ROWS, WIDTH = 200, 4
READ = chance.integers(0, ROWS, (60, 2))
RATED = chance.normal(size=(60, 1)).astype(np.float32)
INNER = {
    "sgd": lambda: dt.optimizers.SGD(0.05),
    "adagrad, clipvalue": lambda: dt.optimizers.Adagrad(0.1, clipvalue=0.05),
}


def rated(rule):
    def build():
        layers = [
            dt.layers.Embedding(ROWS, WIDTH, input_shape=(2,), name="t"),
            dt.layers.Flatten(),
            dt.layers.Dense(1),
        ]
        model = dt.Sequential(layers)
        model.compile(INNER.get(rule, rule)(), "mse")
        return model

    return build


def fit_rated(model):
    history = model.fit(READ, RATED, batch_size=BATCH, epochs=EPOCHS, verbose=0, shuffle=False)
    return history.history["loss"], [np.asarray(each) for each in model.get_weights()]


@pytest.mark.parametrize("rule", INNER)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weighting": "examples"},
        {"outer": OuterSection()},
        {"local_steps": {"by_speed": H}, "replicas": 1},
        {"replicas": 1},
    ],
    ids=["mean", "examples", "diloco", "by speed", "one replica"],
)
def test_rows_come_to_the_bits_of_whole_tables(tmp_path, monkeypatch, rule, settings):
    settings = {"local_steps": H, "replicas": REPLICAS, **settings}
    replicas = settings.pop("replicas")
    whole, *_ = InMemoryCluster(tmp_path / "1", replicas, 2, **settings).run(rated(rule), fit_rated)
    monkeypatch.setattr(fitting, "TABLE_BYTES", 1)
    found = InMemoryCluster(tmp_path / "2", replicas, 2, **settings).run(rated(rule), fit_rated)
    for losses, weights in found:
        assert losses == whole[0]
        for mine, expected in zip(weights, whole[1], strict=True):
            np.testing.assert_array_equal(mine, expected)


def test_differences_of_rows_travel_in_fewer_bits(tmp_path, monkeypatch):
    exact, *_ = InMemoryCluster(tmp_path / "1", REPLICAS, 2, local_steps=H).run(rated("sgd"), fit_rated)
    monkeypatch.setattr(fitting, "TABLE_BYTES", 1)
    cluster = InMemoryCluster(tmp_path / "2", REPLICAS, 2, local_steps=H, compression="bf16")
    found, *_ = cluster.run(rated("sgd"), fit_rated)
    for mine, expected in zip(found[1], exact[1], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0.05, atol=0.01)


def test_a_rule_that_moves_every_row_moves_those_that_were_read(tmp_path, monkeypatch):
    """As the lazy form of Adam: its moments of a row are those of the steps that have read it."""
    monkeypatch.setattr(fitting, "TABLE_BYTES", 1)
    model = rated(lambda: dt.optimizers.Adam(0.01))
    start = np.asarray(model().get_weights()[0])
    [(losses, weights)] = InMemoryCluster(tmp_path, 1, 1, local_steps=H).run(model, fit_rated)
    moved = np.any(weights[0] != start, axis=1)
    assert set(np.flatnonzero(moved)) == set(READ.reshape(-1).tolist())
    assert losses[-1] < losses[0]


def test_asynchronous_rounds_push_rows(tmp_path, monkeypatch):
    """With one replica a push is a step of SGD at the servers: whole tables come to the same, but for the last bits."""
    settings = {"updates": "async", "local_steps": H, "outer": OuterSection(momentum=0.5, delayed=True)}
    whole, *_ = InMemoryCluster(tmp_path / "1", 1, 2, **settings).run(rated("sgd"), fit_rated)
    monkeypatch.setattr(fitting, "TABLE_BYTES", 1)
    found, *_ = InMemoryCluster(tmp_path / "2", 1, 2, **settings).run(rated("sgd"), fit_rated)
    for mine, expected in zip(found[1], whole[1], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


class Counts(Connection):
    """A connection that counts the elements that replicas push."""

    pushed = 0

    def send(self, message, blocks=()):
        if isinstance(message, Push):
            Counts.pushed += sum(np.asarray(block).nbytes for block in blocks)
        super().send(message, blocks)


def test_a_round_pushes_the_rows_that_it_has_moved_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "TABLE_BYTES", 1)
    monkeypatch.setattr(in_memory, "Connection", Counts)
    monkeypatch.setattr(Counts, "pushed", 0)
    InMemoryCluster(tmp_path, 1, 1, local_steps=H).run(rated("sgd"), fit_rated)
    per_epoch = -(-len(READ) // BATCH)
    rounds = [range(first, min(first + H, per_epoch)) for first in range(0, per_epoch, H)]
    rows = sum(len(np.unique(READ[each.start * BATCH : each.stop * BATCH])) for each in rounds)
    dense = (WIDTH * 2 + 1) * 4
    assert Counts.pushed == EPOCHS * (rows * (WIDTH * 4 + 8) + len(rounds) * dense)


@pytest.mark.parametrize("limit", ["clipnorm", "global_clipnorm"])
def test_a_limited_norm_of_rows_is_refused_by_name(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(fitting, "TABLE_BYTES", 1)
    build = rated(lambda: dt.optimizers.SGD(0.1, **{limit: 1.0}))
    with pytest.raises(SpecError, match=f"t/embeddings .* {limit} is there only where whole"):
        InMemoryCluster(tmp_path, 1, 1, local_steps=H).run(build, fit_rated)


# Moments that are kept


def with_moments(at):
    """The same model as `stopped_at`, whose optimizer has moments."""
    model = stopped_at(at)
    model.compile(dt.optimizers.Adam(0.02), dt.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


KEPT = CheckpointSection(every_steps=1, keep=100, inner=True)


@pytest.mark.parametrize("step", [1, ROUNDS + 1, 2 * ROUNDS + 1])
def test_moments_that_are_kept_make_a_resume_the_undisturbed_run_to_the_bit(step, tmp_path):
    straight = InMemoryCluster(tmp_path / "straight", 1, 2, OFTEN, local_steps=H)
    [expected] = straight.run(lambda: with_moments(-1), fit_all)
    with pytest.raises(SystemExit):
        InMemoryCluster(tmp_path, 1, 2, KEPT, local_steps=H).run(lambda: with_moments(step), fit_all)
    [found] = InMemoryCluster(tmp_path, 1, 1, KEPT, local_steps=H).run(lambda: with_moments(-1), fit_all)
    assert found[0] == expected[0]
    for mine, undisturbed in zip(found[1], expected[1], strict=True):
        np.testing.assert_array_equal(mine, undisturbed)


def test_moments_that_are_lost_are_said_with_the_remedy(tmp_path, capsys):
    with pytest.raises(SystemExit):
        InMemoryCluster(tmp_path, 1, 1, OFTEN, local_steps=H).run(lambda: with_moments(2), fit_all)
    assert "checkpoint.inner" not in capsys.readouterr().err
    InMemoryCluster(tmp_path, 1, 1, OFTEN, local_steps=H).run(lambda: with_moments(-1), fit_all)
    said = capsys.readouterr().err
    assert said.count("the moments of its optimizer ended with the process before it") == 1
    assert "at step 2; checkpoint.inner: true keeps them" in said


def test_a_rule_without_moments_loses_none(tmp_path, capsys):
    with pytest.raises(SystemExit):
        InMemoryCluster(tmp_path, 1, 1, OFTEN, local_steps=H).run(lambda: stopped_at(2), fit_all)
    InMemoryCluster(tmp_path, 1, 1, OFTEN, local_steps=H).run(lambda: stopped_at(-1), fit_all)
    assert "moments" not in capsys.readouterr().err


def test_kept_moments_that_are_damaged_are_passed_over_for_those_before(tmp_path):
    with pytest.raises(SystemExit):
        InMemoryCluster(tmp_path, 1, 1, KEPT, local_steps=H).run(lambda: with_moments(4), fit_all)
    kept = sorted((tmp_path / "tasks" / "chief-0" / "inner").glob("ckpt-*"))
    assert len(kept) > 1
    (kept[-1] / "arrays.safetensors").write_bytes(b"damaged")
    [found] = InMemoryCluster(tmp_path, 1, 1, KEPT, local_steps=H).run(lambda: with_moments(-1), fit_all)
    assert len(found[0]) == EPOCHS


def test_a_row_that_was_read_and_not_moved_is_not_pushed():
    """And a table of a round is read once, whatever servers have made of it meanwhile."""
    served = np.arange(20, dtype=np.float32).reshape(10, 2)
    rows = RoundRows(served, dt.optimizers.Adagrad(0.5))
    rows.begin()
    assert rows.own[[7, 3]].tolist() == [[14, 15], [6, 7]]
    served += 1
    rows.update(SparseRows(np.array([3]), np.ones((1, 2), np.float32)), dt.optimizers.Adagrad(0.5), 0)
    pushed = rows.moved(values=True)
    assert pushed.ids.tolist() == [3]
    assert (pushed.rows < [6, 7]).all()
    np.testing.assert_array_equal(rows.moved(values=False).rows, np.float32([6, 7]) - pushed.rows)
    assert rows.own[[7]].tolist() == [[14, 15]]
    rows.begin()
    assert rows.own[[7]].tolist() == [[15, 16]]
    assert not len(rows.moved(values=True).ids)
