"""The place of a run's tasks, in words."""

import pytest

from dtrain.config.choices import On
from dtrain.runs.files import RunFiles, write_record
from dtrain_cli.runs.index import WhereRecord, where_of, where_text


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (WhereRecord(On.LOCAL), "local"),
        (WhereRecord(On.SSH, ["h1"]), "ssh h1"),
        (WhereRecord(On.SSH, ["h1", "h2", "h3"]), "ssh h1 +2"),
        (WhereRecord(On.KUBERNETES), "kubernetes"),
    ],
)
def test_a_place_in_words(record, text):
    assert where_text(record) == text


def test_a_run_without_a_word_or_with_a_damaged_one_is_of_this_machine(tmp_path):
    files = RunFiles(tmp_path)
    assert where_of(files) == WhereRecord(On.LOCAL)
    write_record(files.where, WhereRecord(On.SSH, ["h1"]))
    assert where_of(files) == WhereRecord(On.SSH, ["h1"])
    files.where.write_text("{")
    assert where_of(files) == WhereRecord(On.LOCAL)
