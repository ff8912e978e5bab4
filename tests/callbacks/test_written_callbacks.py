"""Callbacks that write files: tables, event files as the real TensorBoard reads them, backups; and the
progress bar.
"""

import csv
import io
import re

import numpy as np
import pytest

import dtrain as dt
from dtrain.callbacks import LambdaCallback, ProgressBar
from dtrain.errors import SpecError
from dtrain.strategies.single import SingleStrategy

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1)
DATA = (X, 3 * X - 1)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with SingleStrategy().scope():
        yield


def model():
    made = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    made.compile(dt.optimizers.Adam(0.1), "mse", ["mae"])
    return made


def fit(made, *callbacks, epochs=3, verbose=0, **more):
    return made.fit(
        DATA, epochs=epochs, batch_size=4, shuffle=False, verbose=verbose, callbacks=list(callbacks), **more
    )


def read(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_csv_logger(tmp_path):
    history = fit(model(), dt.callbacks.CSVLogger("logs/table.csv"), validation_data=DATA, validation_freq=2)
    rows = read(tmp_path / "logs/table.csv")
    assert rows[0] == ["epoch", "loss", "mae", "val_loss", "val_mae"]
    assert [row[0] for row in rows[1:]] == ["0", "1", "2"]
    assert [float(row[1]) for row in rows[1:]] == history.history["loss"]
    assert (rows[1][3], rows[2][3]) == ("NA", str(history.history["val_loss"][0]))


def test_csv_logger_appends_or_begins_anew(tmp_path):
    for append, rows in ((False, 4), (True, 7), (False, 4)):
        fit(model(), dt.callbacks.CSVLogger("table.csv", separator=";", append=append))
        assert len((tmp_path / "table.csv").read_text().splitlines()) == rows


def test_the_real_tensorboard_reads_what_is_written(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = dt.callbacks.TensorBoard("logs", histogram_freq=2, update_freq=2, write_steps_per_second=True)
    note = LambdaCallback(
        on_epoch_end=lambda epoch, logs: board.writer("train").text("note", f"epoch *{epoch}*", epoch)
    )
    made = model()
    history = fit(made, note, board, validation_data=DATA)

    def scalars(accumulator, tag):
        return {
            event.step: float(
                event.tensor_proto.float_val[0]
                if event.tensor_proto.float_val
                else np.frombuffer(event.tensor_proto.tensor_content, np.float32)[0]
            )
            for event in accumulator.Tensors(tag)
        }

    train, validation = (
        accumulators.EventAccumulator(str(tmp_path / "logs" / name)) for name in ("train", "validation")
    )
    train.Reload()
    validation.Reload()
    assert scalars(train, "epoch_loss") == pytest.approx(dict(enumerate(history.history["loss"])))
    assert scalars(train, "epoch_learning_rate") == pytest.approx({0: 0.1, 1: 0.1, 2: 0.1})
    assert scalars(validation, "epoch_mae") == pytest.approx(dict(enumerate(history.history["val_mae"])))
    assert list(scalars(train, "batch_loss")) == [2, 4, 6, 8, 10, 12]
    assert train.SummaryMetadata("epoch_loss").plugin_data.plugin_name == "scalars"
    [first, last] = train.Tensors("dense/kernel/histogram")
    assert (first.step, last.step) == (0, 2)
    table = np.frombuffer(last.tensor_proto.tensor_content).reshape(30, 3)
    assert table[:, 2].sum() == 1
    assert train.SummaryMetadata("dense/kernel/histogram").plugin_data.plugin_name == "histograms"
    assert [event.tensor_proto.string_val[0] for event in train.Tensors("note")] == [
        f"epoch *{i}*".encode() for i in range(3)
    ]
    assert b"dense" in train.Tensors("model")[0].tensor_proto.string_val[0]


def test_tensorboard_says_what_it_does_not_write():
    with pytest.raises(SpecError, match="scalars, histograms and text; leave out write_images"):
        dt.callbacks.TensorBoard(write_images=True)
    with pytest.raises(SpecError, match="expected update_freq"):
        dt.callbacks.TensorBoard(update_freq="step")


class PowerCut(Exception):
    pass


def cut_power(at_epoch):
    def cut(epoch, logs=None):
        if epoch == at_epoch:
            raise PowerCut

    return LambdaCallback(on_epoch_begin=cut)


@pytest.mark.parametrize(
    ("frequency", "expected"),
    [("epoch", [2, 3]), (4, [1, 2, 3])],  # after its last batch an epoch has not ended yet
)
def test_a_backup_goes_on_where_training_broke_off(tmp_path, frequency, expected):
    def backup():
        return dt.callbacks.BackupAndRestore("backup", save_freq=frequency)

    whole = model()
    fit(whole, epochs=4)
    with pytest.raises(PowerCut):
        fit(model(), backup(), cut_power(2), epochs=4)
    begun = []
    with SingleStrategy().scope():
        again = model()
        fit(again, backup(), LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch)), epochs=4)
    assert begun == expected
    assert all(np.array_equal(a, b) for a, b in zip(again.get_weights(), whole.get_weights(), strict=True))
    assert not list((tmp_path / "backup").iterdir())


def test_a_backup_goes_on_in_the_process_in_which_training_broke_off(tmp_path):
    def backup():
        return dt.callbacks.BackupAndRestore("backup")

    whole = model()
    fit(whole, epochs=4)
    again = model()
    fit(model(), epochs=1)  # so that it is not the first call of fit
    with pytest.raises(PowerCut):
        fit(again, backup(), cut_power(2), epochs=4)
    steps = int(again.optimizer.iterations)
    begun = []
    history = fit(
        again, backup(), LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(epoch)), epochs=4
    )
    assert begun == [2, 3]
    assert history.epoch == [0, 1, 2, 3]
    assert all(np.array_equal(a, b) for a, b in zip(again.get_weights(), whole.get_weights(), strict=True))
    assert int(again.optimizer.iterations) == 2 * steps
    assert not list((tmp_path / "backup").iterdir())


def test_a_rate_that_was_in_force_is_part_of_the_backup():
    halve = dt.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    with pytest.raises(PowerCut):
        fit(model(), halve, dt.callbacks.BackupAndRestore("backup"), cut_power(2), epochs=4)
    with SingleStrategy().scope():
        history = fit(model(), halve, dt.callbacks.BackupAndRestore("backup"), epochs=4)
    assert history.history["lr"] == [0.1 / 2, 0.1 / 4, 0.1 / 8, 0.1 / 16]
    assert history.epoch == [0, 1, 2, 3]


@pytest.mark.parametrize("verbose", [1, 2, "auto"])
def test_plain_lines_in_a_pipe(capsys, verbose):
    made = model()
    fit(made, epochs=2, verbose=verbose)
    made.evaluate(*DATA, batch_size=4, verbose=verbose)
    lines = capsys.readouterr().out.splitlines()
    numbers = r"\d+\.\d s - loss: \d+\.\d{4} - mae: \d+\.\d{4}"
    assert len(lines) == 3
    assert re.fullmatch(f"epoch 1/2 - {numbers}", lines[0])
    assert re.fullmatch(f"epoch 2/2 - {numbers}", lines[1])
    assert re.fullmatch(f"evaluation - {numbers}", lines[2])


def test_silence(capsys):
    made = model()
    fit(made, verbose=0)
    made.evaluate(*DATA, verbose=0)
    assert capsys.readouterr().out == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def played_bar(monkeypatch, columns=200, verbose="auto"):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    bar = ProgressBar(verbose, stream)
    bar.set_params({"epochs": 2, "steps": 40})
    bar.on_train_begin()
    bar.on_epoch_begin(0)
    bar._drawn_s = -1.0
    bar.on_train_batch_end(19, {"loss": 0.5, "lr": 1e-5})
    bar.on_epoch_end(0, {"loss": 0.25})
    return stream.getvalue()


def test_one_line_grows_in_a_terminal(monkeypatch):
    first, second = played_bar(monkeypatch).split("\r\x1b[K")[1:]
    assert re.fullmatch(
        r"epoch 1/2 20/40 \[={15}>\.{14}\] - ETA \d+ s - loss: 0\.5000 - lr: 1\.0000e-05", first
    )
    assert re.fullmatch(r"epoch 1/2 40/40 \[={30}\] - \d+\.\d s - loss: 0\.2500\n", second)


def test_the_growing_line_never_wraps(monkeypatch):
    first = played_bar(monkeypatch, columns=40).split("\r\x1b[K")[1]
    assert len(first) == 39


def test_verbose_2_is_lines_in_a_terminal_too(monkeypatch):
    assert re.fullmatch(r"epoch 1/2 - \d+\.\d s - loss: 0\.2500\n", played_bar(monkeypatch, verbose=2))


def test_numbers_that_an_appended_file_has_no_column_for_are_named(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n0,0.5\n")
    with pytest.warns(UserWarning, match="has no column mae; these numbers are left out"):
        fit(model(), dt.callbacks.CSVLogger(str(path), append=True), epochs=3)
    assert [len(line.split(",")) for line in path.read_text().splitlines()] == [2] * 5
