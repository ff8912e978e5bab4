"""A header of an archive that is damaged, cut off or that announces a name without end is an error, never the end."""

import io
import tarfile

import pytest

from dtrain.data.dataset import Dataset
from dtrain.data.files import TarDataset
from dtrain.data.record_index.addressing import addressed
from dtrain.errors import InputError


def archive() -> bytes:
    """Four examples: a member of two blocks each, and the blocks that end the archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for name in "abcd":
            member = tarfile.TarInfo(f"{name}.x")
            member.size = 3
            file.addfile(member, io.BytesIO(b"123"))
    return made.getvalue()


def with_checksum(header: bytes) -> bytes:
    fields = header[:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(fields) + header[156:]


def endless_name(header: bytes) -> bytes:
    size = b"\x80" + (1 << 62).to_bytes(11, "big")
    return with_checksum(header[:124] + size + header[136:156] + b"L" + header[157:])


def holes_cut_off(header: bytes) -> bytes:
    """A header whose list of holes goes on in the next block, of which there is none."""
    return with_checksum(header[:156] + b"S" + header[157:482] + b"\1" + header[483:])


SOUND = archive()
THIRD = slice(2 * 1024, 2 * 1024 + 512)
DAMAGED = {
    "a bit of the third header": SOUND[: THIRD.start] + b"!" + SOUND[THIRD.start + 1 :],
    "cut off in the third header": SOUND[: THIRD.start + 100],
    "holes that are cut off": SOUND[: THIRD.start] + holes_cut_off(SOUND[THIRD]),
    "a name of 2^62 bytes": SOUND[: THIRD.start] + endless_name(SOUND[THIRD]) + SOUND[THIRD.stop :],
}


def rows(path, indexed):
    dataset = TarDataset(str(path), ["x"])
    return [row["x"] for row in (Dataset(addressed(dataset.node)) if indexed else dataset)]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("damage", DAMAGED)
def test_no_row_is_left_out_without_a_word(damage, indexed, tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(SOUND)
    assert rows(path, indexed) == [b"123"] * 4
    path.write_bytes(DAMAGED[damage])
    with pytest.raises(InputError, match=r"x\.tar.*damage"):
        rows(path, indexed)


@pytest.mark.parametrize("indexed", [False, True])
def test_long_names_are_read(indexed, tmp_path):
    path = tmp_path / "x.tar"
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(path, "w", format=form) as file:
            member = tarfile.TarInfo("n" * 3000 + ".x")
            member.size = 3
            file.addfile(member, io.BytesIO(b"123"))
        assert rows(path, indexed) == [b"123"]
