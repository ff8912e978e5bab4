"""The readers of examples, for the fuzzer."""

import contextlib
import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
from security.mutations import some_bytes
from security.readers import Reader, of_bytes

from dtrain.cluster.hosts import expand_counts
from dtrain.config.targets import read_hosts
from dtrain.data.cache_file import opened_cache, write_elements
from dtrain.data.dataset import Dataset
from dtrain.data.examples import encode_example
from dtrain.data.experimental import CsvDataset
from dtrain.data.files import TarDataset
from dtrain.data.readers.rows import TextLines, TfRecords
from dtrain.data.record_index.addressing import addressed
from dtrain.data.record_index.index_files import read_index, write_index
from dtrain.data.stores.local import OpenFile
from dtrain.data.tables import read_examples
from dtrain.errors import DtrainError
from dtrain.formats.tfrecord import TFRecordWriter, masked_crc32c

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
        list(TextLines().read(str(path / "x.csv")))
        read(path)

    def read_all(path: Path) -> None:
        for file in path.iterdir():
            if file.suffix == ".tfrecord":
                read(path)
            else:
                list(TfRecords(file.suffix[1:]).read(str(file)))

    def structured(name: str, data: bytes, chance: Random) -> bytes:
        return changed_records(name, data, chance) if name.endswith("tfrecord") else data[:-1]

    yield "npz", Reader(archives, of_bytes(archives, changed_npz), read)
    yield "npy", Reader(arrays, of_bytes(arrays, changed_npy), read)
    yield "csv", Reader(texts, of_bytes(texts), read_lines_too)
    yield "tfrecord", Reader(written, of_bytes(written, structured), read_all)


def changed_tar(name: str, data: bytes, chance: Random) -> bytes:
    """Change a header of an archive, whose checksum is right again; compressed as it was."""
    packed = data.startswith(b"\x1f\x8b")
    plain = bytearray(gzip.decompress(data) if packed else data)
    at = chance.choice(
        [place for place in range(0, len(plain), 512) if plain[place + 257 : place + 262] == b"ustar"]
    )
    place, values = chance.choice(
        [
            (156, [b"S", b"L", b"K", b"x", b"g", b"1", b"5"]),
            (124, [b"7" * 11, b"\x80" + b"\xff" * 11, (-1024).to_bytes(12, "big", signed=True), b"x" * 12]),
            (483, [b"7" * 11, b"\xff" * 12]),
        ]
    )
    value = chance.choice(values)
    plain[at + place : at + place + len(value)] = value
    header = plain[at : at + 512]
    plain[at + 148 : at + 156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * ord(" "))
    return gzip.compress(plain) if packed else bytes(plain)


def changed_cache(name: str, data: bytes, chance: Random) -> bytes:
    """Change the first element in a cache of two, whose checksum is right again."""
    header = len(data) - 16 - int.from_bytes(data[-16:-12], "little")
    end = min(header, int.from_bytes(data[header - 16 : header - 8], "little"))
    element = some_bytes(data[12:end], [data], chance)[: end - 12].ljust(end - 12, b"\0")
    return data[:8] + zlib.crc32(element, zlib.crc32(bytes(8))).to_bytes(4, "little") + element + data[end:]


def row_files(folder: Path) -> Iterator[tuple[str, Reader]]:
    """Yield the readers of rows and elements, and of texts that name hosts."""
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in ("a.x", "a.y", "b.x", "b.y"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    plain = (folder / "a.tar").read_bytes()
    tars = [{"x.tar": plain}, {"x.tgz": gzip.compress(plain)}]
    caches = []
    for compression in ("", "GZIP"):
        with open(folder / "c", "wb") as file:
            elements = [{"x": np.arange(4), "y": ("t", 2)}, {"x": np.arange(4), "y": ("u", None)}]
            write_elements(file.write, folder / "c", elements, "f", compression, 1 << 20)
        caches.append({"x.cache": (folder / "c").read_bytes()})
    rows = [{"x.GZIP": gzip.compress(b'1,a\n2,"b"\n')}, {"x.ZLIB": zlib.compress(b"1,a\n2,b\n")}]
    hosts = [{"hosts": b"n[001-003,7]b[1-2],login:4"}, {"hosts": b"[fd00::1]:2,u@h"}, {"counts": b"2(x3),1"}]
    with TFRecordWriter(folder / "r.tfrecord") as writer:
        for number in range(40):
            writer.write(bytes(number))
    records = OpenFile(str(folder / "r.tfrecord"))
    with open(folder / "i", "wb") as file:
        write_index(file.write, "tfrecord", records.facts(), np.array([0, 16, 33, 51], np.uint64))
    indexes = [{"x.dtidx": (folder / "i").read_bytes()}]

    def read_tar(path: Path) -> None:
        for file in path.iterdir():
            examples = TarDataset(str(file), ["x"], compressed=file.suffix == ".tgz")
            with contextlib.suppress(DtrainError):
                list(examples)
            list(Dataset(addressed(examples.node)))

    def read_cache(path: Path) -> None:
        found = opened_cache(path / "x.cache")
        if found is not None:
            found.read(np.arange(min(len(found), 10)))

    def read_rows(path: Path) -> None:
        for file in path.iterdir():
            list(CsvDataset(str(file), [0, ""], compression_type=file.suffix[1:]))

    def read_names(path: Path) -> None:
        for file in path.iterdir():
            (read_hosts if file.name == "hosts" else expand_counts)(file.read_bytes().decode("latin-1"))

    def read_offsets(path: Path) -> None:
        offsets = read_index(path / "x.dtidx", "tfrecord", records.facts())
        if offsets is not None:
            ranges = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
            TfRecords("").rows(
                [records.read(begin, end - begin) for begin, end in ranges], "x", offsets[:-1].tolist()
            )

    yield "tar", Reader(tars, of_bytes(tars, changed_tar), read_tar)
    yield "caches", Reader(caches, of_bytes(caches, changed_cache), read_cache)
    yield "rows of csv", Reader(rows, of_bytes(rows), read_rows)
    yield "hosts", Reader(hosts, of_bytes(hosts), read_names)
    yield "indexes", Reader(indexes, of_bytes(indexes), read_offsets)
