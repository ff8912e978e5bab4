"""Checkpoints of loops of one's own: what is saved is restored, and what does not fit is refused."""

import signal

import numpy as np
import pytest
from strategies.shipped import mirrored

import dtrain as dt
from dtrain.errors import CheckpointDamagedError, CheckpointError, InputError
from dtrain.strategies.single import SingleStrategy

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def objects(units=2):
    with SingleStrategy().scope():
        model = dt.Sequential(
            [dt.layers.Dense(units, input_shape=(3,)), dt.layers.BatchNormalization(), dt.layers.Dense(1)]
        )
        return {
            "model": model,
            "optimizer": dt.optimizers.Adam(0.1),
            "seen": dt.Variable(np.arange(3, dtype=np.int64)),
        }


def train(parts, steps):
    model, optimizer = parts["model"], parts["optimizer"]
    with model.strategy.scope():
        for _ in range(steps):
            _, gradients = model.value_and_gradients("mse", X, X[:, :1])
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            parts["seen"].assign_add(np.ones(3, np.int64))


def state(parts):
    return [*parts["model"].get_weights(), parts["seen"].numpy(), int(parts["optimizer"].iterations)]


def equal(one, two):
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_training_goes_on_to_the_bit_from_what_was_restored(tmp_path):
    whole, first, second = objects(), objects(), objects()
    second["model"].set_weights([value + 1 for value in second["model"].get_weights()])
    train(whole, 7)
    train(first, 3)
    saved = dt.train.Checkpoint(**first)
    saved.counters["of_the_program"] = 5
    saved.write(tmp_path / "file")
    restored = dt.train.Checkpoint(**second).read(tmp_path / "file")
    assert equal(state(second), state(first))
    assert restored.counters["of_the_program"] == 5
    train(second, 4)
    assert equal(state(second), state(whole))


def test_the_newest_files_stay(tmp_path):
    parts = objects()
    manager = dt.train.CheckpointManager(dt.train.Checkpoint(**parts), tmp_path / "all", max_to_keep=2)
    assert manager.restore_or_initialize() is None
    paths = [manager.save() for _ in range(11)]
    assert manager.checkpoints == paths[-2:]
    assert dt.train.latest_checkpoint(tmp_path / "all") == paths[-1] == manager.latest_checkpoint
    assert paths[-1].name == "ckpt-11.safetensors"
    numbered = manager.save(checkpoint_number=40)
    assert manager.checkpoints == [paths[-1], numbered]
    train(parts, 1)
    assert manager.restore_or_initialize() == numbered
    assert int(parts["optimizer"].iterations) == 0


def test_other_objects_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "file"
    dt.train.Checkpoint(**objects()).write(path)
    with pytest.raises(CheckpointError, match=r"model/.*: expected shape"):
        dt.train.Checkpoint(**objects(units=4)).read(path)
    with pytest.raises(CheckpointError, match=r"other: expected shape \(\), found nothing"):
        dt.train.Checkpoint(other=dt.Variable(1.0)).read(path)
    objects()["model"].save_weights(tmp_path / "weights")
    with pytest.raises(CheckpointError, match=r"no file of dt\.train\.Checkpoint"):
        dt.train.Checkpoint(**objects()).read(tmp_path / "weights")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointDamagedError):
        dt.train.Checkpoint(**objects()).read(path)
    with pytest.raises(InputError, match="data: expected a model"):
        dt.train.Checkpoint(data=[1, 2])


def test_a_handler_without_a_folder_or_on_other_objects_is_refused(tmp_path):
    handler = dt.distribute.experimental.PreemptionCheckpointHandler
    with SingleStrategy().scope():
        for given in (dt.train.Checkpoint(), objects()["model"], None):
            with pytest.raises(InputError, match=r"expected a dt\.train\.CheckpointManager"):
                handler(None, given)


def fitted(parts, steps):
    parts["model"].compile(parts["optimizer"], "mse")
    parts["model"].fit(X, X[:, :1], batch_size=8, epochs=steps, verbose=0)


def test_what_fit_has_made_of_an_optimizer_is_saved_and_restored(tmp_path):
    whole, resumed = objects(), objects()
    train(whole, 2)
    fitted(whole, 3)
    assert int(whole["optimizer"].iterations) == 5
    dt.train.Checkpoint(**whole).write(tmp_path / "file")
    dt.train.Checkpoint(**resumed).read(tmp_path / "file")
    assert int(resumed["optimizer"].iterations) == 5
    train(whole, 2)
    train(resumed, 2)
    assert equal(state(resumed)[:-2], state(whole)[:-2])
    assert int(whole["optimizer"].iterations) == int(resumed["optimizer"].iterations) == 7


def unbuilt():
    with SingleStrategy().scope():
        return dt.Sequential([dt.layers.Dense(2), dt.layers.Dense(1)])


def test_a_model_without_shapes_takes_them_from_the_file(tmp_path):
    first, second = unbuilt(), unbuilt()
    first.build((None, 3))
    dt.train.Checkpoint(model=first).write(tmp_path / "file")
    dt.train.Checkpoint(model=second).read(tmp_path / "file")
    assert np.array_equal(second(X), first(X))
    second.build((None, 3))
    assert equal(second.get_weights(), first.get_weights())
    other = unbuilt()
    other.add(dt.layers.Dense(1))
    dt.train.Checkpoint(model=other).read(tmp_path / "file")
    with pytest.raises(
        CheckpointError, match=r"file: model/dense_2/kernel: expected shape .*, found nothing"
    ):
        other(X)


def test_save_numbers_the_files_and_restore_of_none_is_no_error(tmp_path):
    parts, others = objects(), objects()
    train(parts, 1)
    saved = dt.train.Checkpoint(**parts)
    paths = [saved.save(tmp_path / "all" / "mine") for _ in range(2)]
    assert [path.name for path in paths] == ["mine-1.safetensors", "mine-2.safetensors"]
    assert dt.train.latest_checkpoint(tmp_path / "all") == paths[-1]
    assert saved.write(tmp_path / "one") == tmp_path / "one"
    restored = dt.train.Checkpoint(**others)
    restored.restore(dt.train.latest_checkpoint(tmp_path / "nothing")).assert_consumed()
    assert int(others["optimizer"].iterations) == 0
    restored.restore(paths[-1]).expect_partial()
    assert equal(state(others), state(parts))


def test_a_manager_that_would_keep_nothing_is_refused(tmp_path):
    for kept in (0, -1, 2.5):
        with pytest.raises(InputError, match="max_to_keep: expected a whole number of at least 1, or None"):
            dt.train.CheckpointManager(dt.train.Checkpoint(), tmp_path, max_to_keep=kept)
    with pytest.raises(InputError, match=r"expected a dt\.train\.Checkpoint, found int"):
        dt.train.CheckpointManager(3, tmp_path, max_to_keep=1)


def test_a_handler_says_after_which_call_it_has_saved(tmp_path, capfd):
    ended = []
    config = dt.distribute.experimental.TerminationConfig(exit_fn=lambda: ended.append(True))
    with SingleStrategy().scope():
        checkpoint = dt.train.Checkpoint(seen=dt.Variable(1.0))
        given = (None, checkpoint, tmp_path, config)
        handler = dt.distribute.experimental.PreemptionCheckpointHandler(*given)
        handler.run(lambda: None)
        signal.raise_signal(signal.SIGTERM)
        handler.run(lambda: None)
    assert ended == [True]
    assert "dtrain: saved after 2 calls of PreemptionCheckpointHandler.run" in capfd.readouterr().err
    assert dt.train.latest_checkpoint(tmp_path) is not None


@pytest.mark.parametrize("strategy", [SingleStrategy, lambda: mirrored(2)])
def test_saving_within_fit_leaves_its_count_as_it_is(tmp_path, strategy):
    with strategy().scope():
        parts = {"model": dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])}
        parts["optimizer"] = dt.optimizers.Adam(0.1)
        parts["model"].compile(parts["optimizer"], "mse")
        found = []

        def save(batch, logs):
            dt.train.Checkpoint(**parts).write(tmp_path / "file")
            found.append(int(parts["optimizer"].iterations))

        assert not parts["optimizer"].iterations
        saving = dt.callbacks.LambdaCallback(on_train_batch_end=save)
        parts["model"].fit(X, X[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[saving])
        assert found == [1, 2, 3, 4, 5, 6, 7, 8]
        assert parts["optimizer"].iterations
        assert parts["optimizer"].iterations % 5 == 3
        parts["optimizer"].iterations.assign(0)
        dt.train.Checkpoint(**parts).read(tmp_path / "file")
        assert parts["optimizer"].iterations == 8
