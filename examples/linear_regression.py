r"""A line through noisy points: y = 2x + 10, one example a step, SGD. The classic first distributed program.

    dtrain launch cluster_specs/line.yaml examples/linear_regression.py
    python examples/linear_regression.py --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 \
        --job_name=ps --task_index=0

The second form is one task of a cluster started by hand, in the words of TensorFlow's first distributed
programs; start one process for each task.
"""

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dtrain as dt

EXAMPLES = 100_000


class PrintProgress(dt.callbacks.Callback):
    """Prints step, weight, bias and loss every so many steps."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        weight, bias = self.model.get_weights()
        step = (epoch + 1) * self.every
        print(
            f"step {step} weight {weight.item():.4f} bias {bias.item():.4f} loss {(logs or {})['loss']:.4f}",
            flush=True,
        )


def line(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(x, y) with x ~ N(0, 1) and y = 2x + 10 + 0.33 N(0, 1)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(EXAMPLES, 1)).astype(np.float32)
    return x, (2 * x + 10 + 0.33 * rng.normal(size=x.shape)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--learning_rate", type=float, default=3e-5)
    parser.add_argument("--max_steps", type=int, default=1_000_000)
    parser.add_argument("--print_every", type=int, default=1000)
    for name in ("ps_hosts", "worker_hosts", "job_name"):
        parser.add_argument(f"--{name}", default="", help="read by dtrain.get_strategy()")
    parser.add_argument("--task_index", type=int, default=0, help="read by dtrain.get_strategy()")
    args = parser.parse_args()

    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
        model.compile(optimizer=dt.optimizers.SGD(args.learning_rate), loss="mse")
    every = min(args.print_every, args.max_steps)
    model.fit(
        line(),
        batch_size=strategy.num_replicas_in_sync,
        epochs=args.max_steps // every,
        steps_per_epoch=every,
        verbose=0,
        callbacks=[PrintProgress(every)],
    )
    if strategy.is_leader:
        weight, bias = model.get_weights()
        print(f"weight {weight.item():.4f} (true: 2), bias {bias.item():.4f} (true: 10)")


if __name__ == "__main__":
    main()
