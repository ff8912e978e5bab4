"""The leader of replicas with backups computes its first part of an epoch until all others wait behind the epoch."""

import json
import os
import time

import numpy as np

import dtrain as dt

PER_EPOCH, EPOCHS, REPLICAS = 4, 3, 4
PATIENCE_S = 30.0


def main():
    run_dir = dt.get_strategy().directory
    leads = os.environ["DTRAIN_TASK"] == "chief:0"
    ends = [PER_EPOCH * (epoch + 1) for epoch in range(EPOCHS - 1)]

    def waiting_for(task):
        record = json.loads((run_dir / "tasks" / task / "status.json").read_text())
        return record["waiting_for"] or ""

    class LateLeader(dt.Sequential):
        def train_step(self, step):
            if leads and ends and int(self.optimizer.iterations) >= ends[0] - PER_EPOCH:
                behind, until_s = f"step {ends.pop(0) + 1}", time.monotonic() + PATIENCE_S
                while not all(waiting_for(f"worker-{each}").endswith(behind) for each in range(REPLICAS - 1)):
                    assert time.monotonic() < until_s, f"the others do not wait for {behind}"
                    time.sleep(0.01)
            return super().train_step(step)

    with dt.get_strategy().scope():
        model = LateLeader([dt.layers.Input((8,)), dt.layers.Dense(1)])
        model.compile(dt.optimizers.SGD(1e-3), "mse")

    class Watches(dt.callbacks.Callback):
        """Because of it no step is made behind an epoch before the leader has ended it."""

    x = np.ones((2 * REPLICAS * PER_EPOCH, 8), np.float32)
    history = model.fit(
        x, x[:, :1], batch_size=2 * REPLICAS, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[Watches()]
    )
    print("epochs", len(history.history["loss"]), flush=True)


if __name__ == "__main__":
    main()
