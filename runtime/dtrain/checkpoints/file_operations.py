"""The disk operations of writing a checkpoint, in one object, so that a test can make any of them fail."""

import os
import shutil
from pathlib import Path
from typing import BinaryIO


class FileOperations:
    """The operations of the operating system, each either done or an OSError."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it, unless they exist, and sync their names to the disk."""
        if not path.parent.exists():
            self.make_directory(path.parent)
            self.sync_directory(path.parent.parent)
        path.mkdir(exist_ok=True)

    def create(self, path: Path) -> BinaryIO:
        """Open a new file for writing, unbuffered."""
        return open(path, "xb", buffering=0)

    def write(self, file: BinaryIO, data: memoryview) -> None:
        """Write all of a block."""
        while data:
            data = data[file.write(data) :]

    def sync(self, file: BinaryIO) -> None:
        """Wait until a file's bytes are on the disk."""
        os.fsync(file.fileno())

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def link(self, source: Path, target: Path) -> None:
        """Give a file one more name; copy and sync it where the file system has no such links."""
        try:
            os.link(source, target)
        except OSError:
            with open(source, "rb") as read, self.create(target) as file:
                while block := read.read(1 << 20):
                    self.write(file, memoryview(block))
                self.sync(file)

    def rename(self, source: Path, target: Path) -> None:
        """Rename in one move; a file replaces the one of that name, a directory needs a free name."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a directory and what is in it."""
        shutil.rmtree(path)


DISK = FileOperations()
