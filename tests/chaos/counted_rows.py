"""Every example has weights of its own, some on every server, each of which grows by exactly 1 when its
gradient is applied.

Every call of `fit` has examples of its own. Not a test itself.
"""

import argparse
import hashlib
import json
import os
import random
import time

import numpy as np

import dtrain as dt

NARROW = 5
"""The number of variables of one column: more than servers, so that each server holds a weight of every
example.
"""
FAR_ABOVE = 1e6
"""The slope of the absolute error is -1 wherever the weights are."""


class Counter(dt.Model):
    """Gives each output of an example the gradient -1 in the sum over the whole batch, whose size comes as
    the target. The loss of an example is its number, so that of an epoch says which examples are in it.
    """

    def train_step(self, step):
        self.pace()
        outputs = step.forward()
        step.backward(-np.broadcast_to(step.y, outputs.shape) / len(outputs))
        return {"loss": float(step.x.argmax(axis=1).mean())}


def tell(model, histories, **more):
    """Print what a task knows at its end, as one line for a judge that reads what tasks print."""
    weights = b"".join(each.tobytes() for each in model.get_weights())
    told = {"bits": hashlib.sha256(weights).hexdigest(), "history": [each.history for each in histories]}
    print("TOLD", json.dumps({**told, "leads": dt.get_strategy().is_leader, **more}), flush=True)


def counted(model, passes):
    """Return by row how often each example counts, least and most, where that is not `passes` times."""
    counts = np.concatenate(model.get_weights(), axis=1)
    ranges = {str(row): [float(each.min()), float(each.max())] for row, each in enumerate(counts)}
    return {row: found for row, found in ranges.items() if found != [passes, passes]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=48, help="of each call of fit")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="an epoch; default: all examples")
    parser.add_argument("--width", type=int, default=3, help="the columns of the widest variable")
    parser.add_argument("--pace_s", type=float, default=0.03)
    parser.add_argument(
        "--plain", action="store_true", help="Keras's own step; the batch must divide the examples"
    )
    parser.add_argument(
        "--input",
        choices=["dealt", "ahead", "pipelines"],
        default="dealt",
        help="who makes the batches, when",
    )
    parser.add_argument(
        "--ema", action="store_true", help="the weights are replaced by their averages at the end"
    )
    parser.add_argument("--tell", action="store_true", help="print History, weights and counts at the end")
    return parser.parse_args()


def made(examples, args):
    """Data that are read ahead, or a function that makes a pipeline for each replica."""

    def pipeline(context):
        def sized(x, y):
            return x, np.full_like(y, len(y) * context.num_replicas_in_sync)

        own = examples.shard(context.num_input_pipelines, context.input_pipeline_id)
        return own.shuffle(args.examples, seed=1).batch(args.batch).map(sized).prefetch(2)

    def row(x, y):
        return x, np.full_like(y, args.batch)

    ahead = examples.shuffle(args.examples, seed=1).map(row, num_parallel_calls=2).batch(args.batch)
    return pipeline if args.input == "pipelines" else ahead.prefetch(dt.data.AUTOTUNE)


def main():
    args = arguments()
    chance = random.Random(os.environ.get("TF_CONFIG", ""))
    rows, columns = args.fits * args.examples, NARROW + args.width

    def pace():
        time.sleep(args.pace_s * chance.uniform(0.5, 1.5))

    def sized(x, y):
        return x, np.full_like(y, len(y))

    def paced(x, y):
        pace()
        return x, np.full((len(y), columns), FAR_ABOVE, np.float32)

    with dt.get_strategy().scope():
        inputs = dt.layers.Input((rows,))
        widths = [*[1] * NARROW, args.width]
        heads = [
            dt.layers.Dense(width, use_bias=False, kernel_initializer="zeros")(inputs) for width in widths
        ]
        model = (dt.Model if args.plain else Counter)(inputs, dt.layers.Concatenate()(heads))
        model.pace = pace
        rate = float(args.batch * columns) if args.plain else 1.0
        model.compile(dt.optimizers.SGD(rate, use_ema=args.ema, ema_momentum=0.5), "mae")
    histories = []
    for fit in range(args.fits):
        x = np.eye(rows, dtype=np.float32)[fit * args.examples : (fit + 1) * args.examples]
        examples = dt.data.Dataset.from_tensor_slices((x, np.zeros((len(x), 1), np.float32)))
        if args.input != "dealt":
            histories.append(model.fit(made(examples, args), epochs=args.epochs, verbose=0))
            continue
        data = examples.shuffle(len(x), seed=fit).batch(args.batch).map(paced if args.plain else sized)
        histories.append(model.fit(data, epochs=args.epochs, steps_per_epoch=args.steps, verbose=0))
    if args.tell:
        tell(model, histories, miscounted=counted(model, args.epochs))


if __name__ == "__main__":
    main()
