"""Datasets that were written as a whole, and are read without their pipeline."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dtrain.data.caching.cache_file import opened_cache
from dtrain.data.caching.on_disk import StoredElements
from dtrain.data.node import Node, spec_of_first
from dtrain.data.steps.windows import Listed
from dtrain.errors import InputError


class Saved(StoredElements):
    """The elements of a file that `Dataset.save` has written, by number."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            InputError: there is none, or it was not written by `save` or a cache.
        """
        file = opened_cache(path)
        if file is None:
            raise InputError(f"{path}: expected a dataset that save has written, found no such file")
        super().__init__(Listed([]), file)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return self

    @cached_property
    def spec(self) -> Any:
        return spec_of_first(self)
