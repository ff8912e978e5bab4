"""Steps whose batches take about as long to read as to compute, of dtrain, tf.data or a torch DataLoader.

python input_overlap.py --of dtrain|tf.data|torch --input wait|work --steps 100

Prints one JSON object: milliseconds of a step with input alone, with compute alone, and with both, read ahead.
The input of a batch is a pause, as for a file that is far away, or the decompression of a block.
"""

import argparse
import json
import time
import zlib

import numpy as np

INPUT_S = 0.010
COMPUTE_S = 0.012
AHEAD = 2


def decompressing():
    """A function that takes about `INPUT_S` of CPU time, outside of the interpreter's lock."""
    block = zlib.compress(np.random.default_rng(0).integers(0, 4, 1 << 20, np.uint8).tobytes(), 1)
    begun_s = time.process_time()
    for _ in range(5):
        zlib.decompress(block)
    times = max(1, round(INPUT_S / ((time.process_time() - begun_s) / 5)))
    return lambda number: np.int64(len([zlib.decompress(block) for _ in range(times)]) and number)


def waiting(number):
    time.sleep(INPUT_S)
    return np.int64(number)


def compute():
    time.sleep(COMPUTE_S)


def ms_of_dtrain(read, steps, computes, ahead):
    import dtrain as dt

    numbers = dt.data.Dataset.range(steps).map(read)
    data = numbers.batch(1).map(lambda x: (x, x))
    stamps = []

    def step(weights, *_):
        if computes:
            compute()
        stamps.append(time.perf_counter())
        return 0.0, {"w": np.zeros(1, np.float32)}

    with dt.get_strategy().scope():
        model = dt.from_function(lambda *_: {"w": np.zeros(1, np.float32)}, step)
        model.compile(optimizer="sgd")
    model.fit(data.prefetch(AHEAD) if ahead else data, epochs=1, verbose=0)
    return stamps


def ms_of_tensorflow(read, steps, computes, ahead):
    import tensorflow as tf

    data = tf.data.Dataset.range(steps).map(lambda x: tf.numpy_function(read, [x], tf.int64))
    return _looped(data.prefetch(AHEAD) if ahead else data, computes)


def ms_of_torch(read, steps, computes, ahead):
    import torch

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return steps

        def __getitem__(self, number):
            return read(number)

    more = {"num_workers": 1, "prefetch_factor": AHEAD} if ahead else {}
    return _looped(torch.utils.data.DataLoader(Numbers(), batch_size=None, **more), computes)


def _looped(data, computes):
    stamps = []
    for _ in data:
        if computes:
            compute()
        stamps.append(time.perf_counter())
    return stamps


KINDS = {"dtrain": ms_of_dtrain, "tf.data": ms_of_tensorflow, "torch": ms_of_torch}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=KINDS, required=True)
    parser.add_argument("--input", choices=["wait", "work"], required=True)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    read = waiting if args.input == "wait" else decompressing()

    def ms(read, computes, ahead):
        stamps = KINDS[args.of](read, args.steps, computes, ahead)
        return float(np.median(np.diff(stamps[len(stamps) // 5 :]))) * 1000

    found = {
        "input": ms(read, computes=False, ahead=False),
        "compute": ms(np.int64, computes=True, ahead=False),
        "both": ms(read, computes=True, ahead=True),
        "in turn": ms(read, computes=True, ahead=False),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
