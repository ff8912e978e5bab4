r"""One trial of a search for hyperparameters: a perceptron whose shape and optimizer are flags, and which
reports its accuracy.

    dtrain launch examples/tuned_trial.py --data FOLDER --n_hidden 2 --n_neurons 200 \
        --learning_rate 0.1 --optimizer sgd
    python examples/tuned_trial.py --quick

After every epoch the leader prints one line of JSON for the program that runs the search: the metric, its
value, the global step.
"""

import argparse
import json
from typing import Any

import images

import dtrain as dt


class Report(dt.callbacks.Callback):
    """Says how good the model is on images that it has not seen."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        step = (epoch + 1) * self.params["steps"]
        print(
            json.dumps(
                {"metric": "accuracy", "value": round((logs or {})["val_accuracy"], 4), "global_step": step}
            ),
            flush=True,
        )

    def monitors_validation(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n_hidden", type=int, default=1)
    parser.add_argument("--n_neurons", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.1)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--epochs", type=int, default=10)
    images.add_arguments(parser)
    args = parser.parse_args()
    (x, y), test = images.load(args)

    strategy = dt.get_strategy()
    with strategy.scope():
        hidden = [dt.layers.Dense(args.n_neurons, activation="relu") for _ in range(args.n_hidden)]
        model = dt.Sequential([dt.layers.Flatten(), *hidden, dt.layers.Dense(10, activation="softmax")])
        optimizer = {"sgd": dt.optimizers.SGD, "adam": dt.optimizers.Adam}[args.optimizer](args.learning_rate)
        model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, epochs=args.epochs, validation_data=test, verbose=0, callbacks=[Report()])


if __name__ == "__main__":
    main()
