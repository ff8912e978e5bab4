"""A PyTorch module on parameter servers: PyTorch computes the gradients, dtrain does the rest.

pip install -e '.[torch]'
dtrain launch examples/torch_mlp.py --quick
"""

import argparse

import images
import torch
from torch import nn

import dtrain as dt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    images.add_arguments(parser)
    args = parser.parse_args()
    train, test = images.load(args)

    torch.manual_seed(0)
    pixels = train[0][0].size
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10)
    )
    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.from_torch(module, nn.functional.cross_entropy)
        model.compile(optimizer=dt.optimizers.Adam(1e-3), metrics=["accuracy"])
    model.fit(train, epochs=args.epochs, batch_size=64 * strategy.num_replicas_in_sync, validation_data=test)
    if strategy.is_leader:
        loss, accuracy = model.evaluate(test)
        print(f"accuracy on images not seen {accuracy:.4f}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
