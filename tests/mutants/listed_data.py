"""Planted bugs of the room of data: what loses or doubles an example, or reads what is not what was written."""

from mutant import bug

CSV = "data/readers/csv_format.py"
OFFSETS = "data/record_index/index_files.py"
JOINING = "data/joining.py"
ONCE = "data/distribution/once.py"

FOUND = [
    bug(ONCE, "learned_once", "_calls[name] += 1"),
    bug("data/build_once.py", "build_once", "aside.rename(path)"),
    bug(CSV, "CsvColumn.value", "b'_' in field", "False"),
    bug(CSV, "CsvRows.row", "self.fields is not None and len(fields) != self.fields", "False"),
    bug(CSV, "CsvRows.scan", "quotes_before = int(quotes[-1])"),
    bug(CSV, "CsvRows.scan", "1 if self.header and len(offsets) > 1 else 0", "0"),
    bug(
        OFFSETS,
        "read_index",
        "header != IndexHeader.of(kind, facts, header.records) or header.records < 0",
        "False",
    ),
    bug(OFFSETS, "read_index", "not is_trusted(found, path.parent.stat(), *beside)", "False"),
    bug(
        "data/caching.py",
        "Stored._digest",
        "fingerprint(pipeline, files, self._place.compression)",
        "fingerprint(pipeline, [], self._place.compression)",
    ),
    bug("data/prefetching/processes.py", "_help", "die_with_parent(parent)"),
    bug(JOINING, "Interleaved.iterate", "taken < self._block", "True"),
    bug(JOINING, "Concatenated._locate", "beyond < 0", "beyond <= 0"),
]
