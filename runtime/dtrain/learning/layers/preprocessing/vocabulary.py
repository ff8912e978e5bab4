"""Vocabularies that lookups learn: tokens by frequency, and how rare each is. And tokens in a file."""

import platform
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.formats.regular_file import open_regular


class TokenCounts:
    """How often tokens were seen, and in how many documents."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self._documents: Counter[Any] = Counter()
        self._number = 0

    def add(self, tokens: Iterable[Any]) -> None:
        """Count the tokens of a document, or of several whose borders do not matter."""
        self.counts.update(tokens)

    def add_documents(self, documents: Iterable[list[Any]]) -> None:
        """Count the tokens of documents, each for itself."""
        for document in documents:
            self.counts.update(document)
            self._documents.update(set(document))
            self._number += 1

    def ranked(self, most: int | None, but: set[Any]) -> list[Any]:
        """Return the most frequent tokens but some; equals go from high to low, as in Keras."""
        counts = self.counts
        found = sorted(
            (each for each in counts if each not in but), key=lambda t: (counts[t], t), reverse=True
        )
        return found[:most]

    def rarities(self, tokens: Iterable[Any], specials: int) -> list[float]:
        """Return the inverse document frequency of each token; before them their mean, for special ones."""
        within = np.array([self._documents[each] for each in tokens], np.float32)
        found = np.log(np.float32(1) + np.float32(self._number) / (np.float32(1) + within))
        return [float(found.mean())] * specials + found.tolist() if len(found) else [0.0] * specials


def tokens_in(path: Path, where: str) -> list[str]:
    """Return the lines of a UTF-8 text file; a `SpecError` names the file and this host."""
    try:
        with open(open_regular(path), encoding="utf-8-sig") as file:
            lines = file.read().removesuffix("\n").split("\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        expected = "expected tokens, or the path of a text file with one token a line"
        raise SpecError(
            f"{where}: vocabulary: cannot read {path} on host {platform.node()}: {reason}; {expected}"
        ) from None
    return lines if lines != [""] else []
