"""The readers of examples, for the fuzzer."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
from security.mutations import some_bytes
from security.readers import Reader, of_bytes

from dtrain.data.examples import encode_example
from dtrain.data.readers.row_formats import read_lines
from dtrain.data.tables import read_examples
from dtrain.formats.tfrecord import TFRecordWriter, masked_crc32c, read_records

# Data


def changed_npz(name: str, whole: bytes, chance: Random) -> bytes:
    """Change the headers of arrays in an archive whose own checksums are right, or fields of its directory."""
    if chance.random() < 0.4:
        at = whole.rfind(b"PK\x01\x02") + chance.randrange(46)
        return whole[:at] + chance.randbytes(chance.choice((1, 2, 4))) + whole[at + 4 :]
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            data = old.read(member)
            new.writestr(member.filename, changed_npy(name, data, chance))
    return out.getvalue()


def changed_npy(name: str, data: bytes, chance: Random) -> bytes:
    """Change the header of an array."""
    if not data.startswith(b"\x93NUMPY"):
        return data
    end = data.index(b"\n") + 1
    old = chance.choice([b"(", b"'<f4'", b"False", b"'shape'", b"4", b"{", b"}", b","])
    new = chance.choice(
        [b"(" * 90, b"'|O'", b"None", b"9" * 20, b"-1", b"'<U99999999'", b"[('a','<f4')]", b"1.5", b""]
    )
    text = data[10:end].replace(old, new, 1).rstrip().ljust(117) + b"\n"
    return data[:8] + len(text).to_bytes(2, "little") + text + data[end:]


def changed_records(name: str, data: bytes, chance: Random) -> bytes:
    """Change the message in a record, whose checksums are right again, or its length."""
    record = some_bytes(data[12:-4], [data], chance)
    length = len(record) if chance.random() < 0.9 else chance.choice((2**31, 2**40, 2**62, 2**63, 0))
    head = length.to_bytes(8, "little")
    return (
        head
        + masked_crc32c(head).to_bytes(4, "little")
        + record
        + masked_crc32c(record).to_bytes(4, "little")
    )


def data_files(folder: Path) -> Iterator[tuple[str, Reader]]:
    """Yield the readers of examples."""
    x, y = np.ones((4, 2), np.float32), np.arange(4)
    np.savez(folder / "a.npz", x=x, y=y)
    np.savez_compressed(folder / "b.npz", x=x, y=y)
    np.save(folder / "a.npy", x)
    archives = [{"x.npz": (folder / name).read_bytes()} for name in ("a.npz", "b.npz")]
    arrays = [{"x.npy": (folder / "a.npy").read_bytes()}]
    texts = [{"x.csv": b"a,b,y\n1,2,3\n4,5,6\n"}, {"x.csv": b"1,2\n3,4\n"}]
    record = encode_example({"x": [1.0, 2.0], "y": 3, "name": [b"n"]})
    written = []
    for compression in ("", "GZIP", "ZLIB"):
        with TFRecordWriter(folder / "r", compression) as writer:
            writer.write(record)
        written.append({f"x.{compression or 'tfrecord'}": (folder / "r").read_bytes()})

    def read(path: Path) -> None:
        for file in path.iterdir():
            read_examples(file, {"x": (2,)}, targets=file.suffix != ".npy")

    def read_lines_too(path: Path) -> None:
        list(read_lines(str(path / "x.csv")))
        read(path)

    def read_all(path: Path) -> None:
        for file in path.iterdir():
            if file.suffix == ".tfrecord":
                read(path)
            else:
                list(read_records(file, file.suffix[1:]))

    def structured(name: str, data: bytes, chance: Random) -> bytes:
        return changed_records(name, data, chance) if name.endswith("tfrecord") else data[:-1]

    yield "npz", Reader(archives, of_bytes(archives, changed_npz), read)
    yield "npy", Reader(arrays, of_bytes(arrays, changed_npy), read)
    yield "csv", Reader(texts, of_bytes(texts), read_lines_too)
    yield "tfrecord", Reader(written, of_bytes(written, structured), read_all)
