"""Counts of batches and steps in one call of `fit`, and the place where a resume with other counts goes on.

A program may give other batches than before: ``batch_size=64 * strategy.num_replicas_in_sync`` is another
number in asynchronous training than in synchronous. Then batches are counted anew, so that training goes on
at the same example.
"""

from typing import NamedTuple

from dtrain.errors import InputError
from dtrain.state.batch_cut import MISSING_MAX, UNCUT, Dealt


class DataFile(NamedTuple):
    """A file of data, as it is known again.

    Attributes:
        checksum: of size, beginning and end; see `data.record_index.files_read`.
    """

    path: str
    nbytes: int
    checksum: int


class Feed(NamedTuple):
    """Batches and steps of one call of `fit`; 0 where a number is not known.

    Attributes:
        pipelines: how many pipelines a function of an InputContext makes; see `protocol.part_dealer`.
        local_steps: of a round, where steps are rounds; else 0.
    """

    batch_size: int = 0
    batches: int = 0
    steps_per_epoch: int = 0
    pipelines: int = 0
    files: tuple[DataFile, ...] = ()
    local_steps: int = 0

    def change_from(self, before: "Feed") -> str | None:
        """Return what is different from before; None if nothing is that is known of both."""
        pairs = zip(self._fields, before, self, strict=True)
        said = [
            f"{name.replace('_', ' ')} {old}, now {new}"
            for name, old, new in pairs
            if name != "files" and old and new and old != new
        ]
        return "; ".join(said) or None

    def other_rounds(self, before: "Feed") -> str | None:
        """Return why the rounds of before had other batches than those of now; None: they had not."""
        if UNKNOWN in (self, before) or not (self.local_steps or before.local_steps):
            return None
        names = ("local_steps", "batch_size", "steps_per_epoch")
        pairs = [(name, getattr(before, name), getattr(self, name)) for name in names]
        said = [f"{name} {old or 1}, now {new or 1}" for name, old, new in pairs if old != new]
        return "; ".join(said) or None

    def changed_files(self, before: "Feed") -> list[tuple[DataFile, DataFile]]:
        """Return each file of which both know that has other contents than before, as it was and as it is."""
        known = {file.path: file for file in before.files}
        return [(known[file.path], file) for file in self.files if known.get(file.path, file) != file]

    def goes_on(self, before: "Feed", dealt: Dealt) -> Dealt:
        """Return the data left in these batches after others were dealt; a batch with any of it is whole.

        Raises:
            InputError: so many batches as that cannot have been dealt.
        """
        if (
            not (before.batch_size and self.batch_size)
            or before.batch_size == self.batch_size
            or not dealt.parts
        ):
            return dealt
        _, following, due, *_ = dealt.going_on(UNCUT, sync=True).cut_into(1)
        first = self._span(before, following).start
        ranges = [self._span(before, each) for each in due]
        if sum(map(len, ranges)) > MISSING_MAX:
            raise InputError(f"batches of {before.batch_size} examples are more than {MISSING_MAX} of now")
        left = {batch for each in ranges for batch in each}
        return Dealt(1, first, tuple(sorted(batch for batch in left if batch < first)))

    def _span(self, before: "Feed", batch: int) -> range:
        """Return the batches that hold the examples of a batch of before."""
        passes, within = divmod(batch, before.batches) if before.batches and self.batches else (0, batch)
        begin = within * before.batch_size // self.batch_size
        end = -(-(within + 1) * before.batch_size // self.batch_size)
        shift = passes * self.batches
        return range(shift + begin, shift + (min(end, self.batches) if self.batches else end))


UNKNOWN = Feed()
