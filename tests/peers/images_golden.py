"""Write tests/golden/p_images.npz: a file of each mode of PNG, JPEG, GIF and BMP, and TensorFlow's pixels of each.

Run it with TensorFlow 2.15.1 and Pillow: `python tests/peers/images_golden.py tests/golden/p_images.npz`. Where
TensorFlow refuses a mode there is no row. Left out is what its decoder gets wrong: the alpha of PNG with fewer than
8 bits a value (15 for 4 bits, where 255 is meant), BMP with a palette (the numbers of colours), and the fourth
byte of a BMP, which Pillow takes for padding.
"""

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}
SIZE = (6, 5)
rng = np.random.default_rng(3)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(pixels, kind, depth, more=b""):
    """Return a PNG of `depth` bits a value, of a kind that Pillow may not write."""
    height, width = pixels.shape[:2]
    rows = []
    for row in pixels.reshape(height, -1):
        bits = "".join(format(int(value), f"0{depth}b") for value in row)
        bits += "0" * (-len(bits) % 8)
        rows.append(b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big"))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + more + body


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def drawn(depth, *channels):
    return rng.integers(0, 1 << depth, (*SIZE, *channels))


def files():
    for depth in (1, 2, 4, 8, 16):
        yield f"grey{depth}.png", png(drawn(depth), 0, depth)
    for depth in (8, 16):
        yield f"grey_alpha{depth}.png", png(drawn(depth, 2), 4, depth)
        yield f"rgb{depth}.png", png(drawn(depth, 3), 2, depth)
        yield f"rgba{depth}.png", png(drawn(depth, 4), 6, depth)
    yield "grey16_transparent.png", png(drawn(16), 0, 16, chunk(b"tRNS", struct.pack(">H", 4000)))
    colours = rng.integers(0, 256, (256, 3)).astype(np.uint8).tobytes()
    for depth in (1, 2, 4, 8):
        yield f"palette{depth}.png", png(drawn(depth), 3, depth, chunk(b"PLTE", colours[: 3 << depth]))
    alpha = rng.integers(0, 256, 100).astype(np.uint8).tobytes()
    more = chunk(b"PLTE", colours) + chunk(b"tRNS", alpha)
    yield "palette8_transparent.png", png(drawn(8), 3, 8, more)
    small = Image.fromarray(drawn(8, 3).astype(np.uint8))
    even = Image.fromarray(np.kron(rng.integers(0, 256, (3, 3, 3)), np.ones((8, 8, 1))).astype(np.uint8))
    yield "rgb.jpg", saved(even, "JPEG", quality=95)
    yield "progressive.jpg", saved(even, "JPEG", progressive=True)
    yield "grey.jpg", saved(even.convert("L"), "JPEG", quality=95)
    yield "cmyk.jpg", saved(even.convert("CMYK"), "JPEG", quality=95)
    yield "palette.gif", saved(small.convert("P", palette=Image.Palette.ADAPTIVE), "GIF")
    yield "rgb.bmp", saved(small, "BMP")


def main(path):
    arrays = {}
    for name, data in files():
        arrays[f"{name}/file"] = np.frombuffer(data, np.uint8)
        for mode, channels in CHANNELS.items():
            if mode == "rgba" and name in {
                f"{kind}{depth}.png" for kind in ("grey", "palette") for depth in (1, 2, 4)
            }:
                continue
            try:
                pixels = tf.io.decode_image(data, channels=channels, expand_animations=False)
            except tf.errors.InvalidArgumentError:
                continue
            arrays[f"{name}/{mode}"] = pixels.numpy()
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
