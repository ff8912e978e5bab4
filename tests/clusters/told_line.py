"""A small training on dealt arrays that tells its History and its weights to the last bit, in every task. Not a test
itself.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import numpy as np

import dtrain as dt
from dtrain.roles.collective.calls import CallLog


class Waiting(dt.Sequential):
    """Takes a while for a step, and from a step on waits for a file, which it says by another file.

    Steps are its own, or versions of the weights: with backups a replica does not contribute to each.
    """

    wait_for: Path | None = None
    after = 0
    counts_versions = False
    pace_s = 0.0
    steps = 0

    def train_step(self, step):
        self.steps += 1
        time.sleep(self.pace_s)
        done = step._replica._training.global_step if self.counts_versions else self.steps - 1
        if self.wait_for is not None and done >= self.after:
            Path(f"{self.wait_for}-{os.environ.get('DTRAIN_TASK')}").touch()
            while not self.wait_for.exists():
                time.sleep(0.01)
        return super().train_step(step)


class Steers(dt.callbacks.Callback):
    """Assigns weights and stops, both in the midst of an epoch."""

    def __init__(self, assign_at, stop_at):
        super().__init__()
        self.assign_at, self.stop_at, self.seen = assign_at, stop_at, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.assign_at:
            self.model.set_weights([0.5 * weight for weight in self.model.get_weights()])
        if self.seen == self.stop_at:
            self.model.stop_training = True


def die_at(moment):
    """Have this process kill itself at a moment, of two for each value that it gives to a sum within a step."""
    give, passed = CallLog.give, []

    def counting(*args):
        for act in (list, lambda: give(*args)):
            act()
            passed.append(act)
            if len(passed) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    CallLog.give = counting


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--wait_for")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--counts_versions", action="store_true")
    parser.add_argument("--stay_for", help="a file for which the program waits at its end")
    parser.add_argument("--pace_s", type=float, default=0.0)
    parser.add_argument("--assign_at", type=int, default=0)
    parser.add_argument("--stop_at", type=int, default=0)
    parser.add_argument("--synchronized", action="store_true")
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--die", nargs=2, action="append", default=[], metavar=("TASK", "MOMENT"))
    parser.add_argument("--made_by", default="get_strategy")
    args = parser.parse_args()
    for task, moment in args.die:
        if (os.environ.get("DTRAIN_TASK"), os.environ.get("DTRAIN_ATTEMPT")) == (task, "0"):
            die_at(int(moment))
    rng = np.random.default_rng(3)
    x = rng.normal(size=(args.rows, 5)).astype(np.float32)
    y = x @ np.arange(5, dtype=np.float32)[:, None]
    strategy = getattr(dt, args.made_by)()
    with strategy.scope():
        normalization = dt.layers.BatchNormalization(synchronized=args.synchronized)
        model = Waiting([dt.layers.Dense(7, activation="tanh"), normalization, dt.layers.Dense(1)])
        model.compile(optimizer=dt.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
    model.wait_for = Path(args.wait_for) if args.wait_for else None
    model.after, model.counts_versions, model.pace_s = args.after, args.counts_versions, args.pace_s
    callbacks = [Steers(args.assign_at, args.stop_at)] if args.assign_at or args.stop_at else []
    for _ in range(args.fits):
        history = model.fit(
            x,
            y,
            batch_size=12,
            epochs=args.epochs,
            validation_data=(x[:10], y[:10]),
            callbacks=callbacks,
            verbose=0,
        )
        print(
            "history",
            {name: [float(each).hex() for each in row] for name, row in sorted(history.history.items())},
        )
    print("weights", [weight.tobytes().hex() for weight in model.get_weights()], flush=True)
    print("pid", os.getpid())
    while args.stay_for and not Path(args.stay_for).exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
