"""Columns of categories in a Parquet file, which pandas writes as dictionaries."""

import numpy as np
import pytest

from dtrain.data import ParquetDataset

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_categories_are_read_as_their_values(tmp_path):
    words, sizes = ["b", "a", "b", "c"], [7, 5, 7, 5]
    table = pa.table(
        {"word": pa.array(words).dictionary_encode(), "size": pa.array(sizes).dictionary_encode()}
    )
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    dataset = ParquetDataset(str(tmp_path / "x.parquet"))
    assert [(each["word"], each["size"]) for each in dataset] == [
        (word.encode(), size) for word, size in zip(words, sizes, strict=True)
    ]
    assert (dataset.element_spec["word"].dtype, dataset.element_spec["size"].dtype) == ("string", "int64")
    [batch] = dataset.batch(4)
    assert batch["size"].dtype == np.int64
    parquet.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    assert ParquetDataset(str(tmp_path / "none.parquet")).element_spec["size"].dtype == "int64"
