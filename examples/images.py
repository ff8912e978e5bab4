"""Images for the examples: MNIST and Fashion-MNIST from files that you have, or the digits that stand beside
the examples.

The files are those of the data sets' own sites, in the idx format, gzipped or not
(``train-images-idx3-ubyte.gz``, ...):

    MNIST          https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz
                   and its three neighbours
    Fashion-MNIST  https://github.com/zalandoresearch/fashion-mnist,
                   or on Debian `apt install dataset-fashion-mnist`

Put them into one folder for each data set and name it: `--data FOLDER`.
"""

import argparse
import gzip
import os
from pathlib import Path

import numpy as np
from digits import Examples, load_digits
from numpy.typing import NDArray

PLACES = {"mnist": ["/usr/share/datasets/mnist"], "fashion-mnist": ["/usr/share/datasets/fashion-mnist"]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--dataset``, ``--data`` and ``--quick`` for the command line of an example."""
    parser.add_argument("--dataset", choices=sorted(PLACES), default="mnist")
    parser.add_argument(
        "--data", metavar="FOLDER", help="where the files are (default: DTRAIN_DATA, or Debian's place)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the 8x8 digits that are shipped, and little training"
    )


def load(args: argparse.Namespace) -> tuple[Examples, Examples]:
    """((x, y) to train on, (x, y) to test on): images [n, height, width] with pixels from 0 to 1, labels 0 to
    9.
    """
    if args.quick:
        (x, y), (x_test, y_test) = load_digits()
        return (x.reshape(-1, 8, 8), y), (x_test.reshape(-1, 8, 8), y_test)
    given = [args.data] if args.data else [os.environ.get("DTRAIN_DATA", ""), *PLACES[args.dataset]]
    folders = [Path(folder, inner) for folder in given if folder for inner in (args.dataset, "")]
    for folder in folders:
        if train := sorted(folder.glob("train*-images-idx3-ubyte*")):
            return _pair(train[0]), _pair(*folder.glob("t10k-images-idx3-ubyte*"))
    raise SystemExit(
        f"no {args.dataset} files in {', '.join(map(str, folders)) or 'DTRAIN_DATA'}; try "
        f"--quick.\n\n{__doc__}"
    )


def _pair(images: Path) -> Examples:
    labels = images.with_name(images.name.replace("images-idx3", "labels-idx1"))
    pixels = _read(images).astype(np.float32)
    pixels /= 255
    return pixels, _read(labels).astype(np.int64)


def _read(path: Path) -> NDArray[np.uint8]:
    """One idx file of bytes: two zeros, the type 8, the number of axes, each length as four bytes, then the
    data.
    """
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    if content[:3] != b"\0\0\x08":
        raise SystemExit(f"{path}: expected an idx file of bytes, found {content[:4]!r}")
    lengths = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(lengths)).reshape(lengths)
