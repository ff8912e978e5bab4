"""A program whose replicas reduce among themselves, and in which tasks die at chosen moments of their own.

`--die TASK MOMENT NUMBER` has the first process of a task kill itself at the moment of this number that it
comes to: ``step`` as it computes a gradient, ``validation`` at a batch of a validation, ``end`` and ``begin``
in a hook of epochs, ``start`` before it has taken its place, ``between`` behind the first `fit`, ``saving`` as anything of its is on its way to the
disk, ``newcomer`` as the step is over in which a replica has begun to take part that was started again, which the others
then wait for in step 30.
"""

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import numpy as np

import dtrain as dt
from dtrain.roles.collective.member_driver import MemberDriver

X = np.random.default_rng(3).normal(size=(96, 6)).astype(np.float32)
ROWS = 20_000
"""Of a table, which with 4 elements each is large enough that gradients list rows."""
Y = np.tanh(X @ np.arange(1.0, 7.0, dtype=np.float32)[:, None])


class Deaths:
    """The moments of this task that have passed, by kind."""

    def __init__(self, orders):
        task, first = os.environ.get("DTRAIN_TASK"), os.environ.get("DTRAIN_ATTEMPT") == "0"
        self.at = {kind: int(number) for name, kind, number in orders if name == task and first}
        self.passed = dict.fromkeys(self.at, 0)

    def moment(self, kind):
        if kind in self.at:
            self.passed[kind] += 1
            if self.passed[kind] == self.at[kind]:
                os.kill(os.getpid(), signal.SIGKILL)


def let_newcomers_in(deaths):
    """Wait for a newcomer in step 30, in the midst of an epoch; that it is a member next is a moment."""
    contribute = MemberDriver.contribute

    def contributes(driver, *told):
        until_s = time.monotonic() + 60
        while driver.version == 29 and not driver._links.offered and time.monotonic() < until_s:
            time.sleep(0.02)
        outcome = contribute(driver, *told)
        leading = driver._member._leading
        if leading is not None and driver._welcomed and not leading._new:
            deaths.moment("newcomer")
        return outcome

    MemberDriver.contribute = contributes


class Noter(dt.callbacks.Callback):
    """Notes the epochs whose end it has seen, with their numbers."""

    def __init__(self, deaths):
        self.deaths = deaths
        self.ended = []

    def get_state(self):
        return {"ended": self.ended}

    def set_state(self, state):
        self.ended = state["ended"]

    def on_epoch_begin(self, epoch, logs=None):
        self.deaths.moment("begin")

    def on_epoch_end(self, epoch, logs=None):
        self.deaths.moment("end")
        self.ended.append([epoch, logs["loss"], logs["val_loss"]])

    def on_test_batch_end(self, batch, logs=None):
        self.deaths.moment("validation")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", nargs=3, action="append", default=[])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument(
        "--table", action="store_true", help="train an embedding table, of which steps read rows"
    )
    parser.add_argument("--again", action="store_true", help="call fit twice")
    parser.add_argument("--wait_for", default="")
    parser.add_argument("--stuck", default="", help="a task that stands still in its third step")
    parser.add_argument("--stopped", default="", help="a task whose processes are stopped in its 20th step")
    options = parser.parse_args()
    deaths = Deaths(options.die)
    deaths.moment("start")
    if os.environ.get("DTRAIN_ATTEMPT") == "0" and any(kind == "newcomer" for _, kind, _ in options.die):
        let_newcomers_in(deaths)
    sync = os.fsync

    def dies_as_it_saves(descriptor):
        deaths.moment("saving")
        sync(descriptor)

    os.fsync = dies_as_it_saves
    steps = 0

    class Dies(dt.Model):
        def train_step(self, step):
            nonlocal steps
            steps += 1
            deaths.moment("step")
            while steps == 30 and options.wait_for and not Path(options.wait_for).exists():
                Path("held").touch()
                time.sleep(0.02)
            if os.environ.get("DTRAIN_ATTEMPT") == "0":
                if steps == 3 and os.environ.get("DTRAIN_TASK") == options.stuck:
                    time.sleep(3600)
                if steps == 20 and os.environ.get("DTRAIN_TASK") == options.stopped:
                    os.killpg(0, signal.SIGSTOP)
            return super().train_step(step)

    strategy = dt.get_strategy()
    with strategy.scope():
        inputs = dt.Input(shape=(6,))
        first = inputs
        if options.table:
            first = dt.layers.Flatten()(dt.layers.Embedding(ROWS, 4)(inputs))
        hidden = dt.layers.Dense(8, activation="relu")(first)
        hidden = dt.layers.BatchNormalization()(dt.layers.Dropout(0.2)(hidden))
        model = Dies(inputs, dt.layers.Dense(1)(hidden))
        rule = dt.optimizers.legacy.Nadam if options.table else dt.optimizers.Adam
        model.compile(rule(0.01, clipnorm=0.5), "mse")
    data = (np.abs(X) * ROWS / 8).astype(np.int64) if options.table else X
    noter = Noter(deaths)
    history = model.fit(
        data,
        Y,
        batch_size=12,
        epochs=options.epochs,
        verbose=0,
        validation_data=(data, Y),
        callbacks=[
            dt.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            noter,
            dt.callbacks.CSVLogger("table.csv"),
            dt.callbacks.ModelCheckpoint("best.safetensors", save_best_only=True, save_weights_only=True),
        ],
    )
    deaths.moment("between")
    if options.again:
        model.fit(data, Y, batch_size=12, epochs=2, verbose=0)
    told = {
        "weights": hashlib.sha256(b"".join(each.tobytes() for each in model.get_weights())).hexdigest(),
        "history": history.history,
        "noted": noter.ended if strategy.is_leader else None,
    }
    print("TOLD", json.dumps(told), flush=True)


main()
