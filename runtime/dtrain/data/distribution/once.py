"""Results of reading data once for all tasks of a run, kept for a resume: rule *Learned once*
(docs/design/protocol.md#learned-once).

The tasks of one host share the run directory: the first one to come learns, and the others wait for its file.
Tasks of several hosts share none: there the leader learns, and the others ask it through the control plane.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from dtrain.data.build_once import once_in_run
from dtrain.data.record_index.index_files import FOLDER
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import read_regular

ADAPTED = "adapted"
WAIT_S = 3600.0
"""How long one task may take to learn from its data while the others wait; they name it."""
BYTES_MAX = 1 << 30

_calls: Counter[str] = Counter()


OverHosts = Callable[[str, str, float, Callable[[], bytes]], bytes]
"""A function of a key, the learner, seconds to wait and what learns here; returns what the leader learned.

Nothing: the leader cannot be asked, or what it has learned is too large to be sent.
"""

_over_hosts: OverHosts | None = None


def share_over_hosts(way: OverHosts | None) -> None:
    global _over_hosts
    _over_hosts = way


def learned_once(who: str, what: str, learn: Callable[[], list[Any]]) -> list[Any]:
    """Return what one task of the run learns from its data; the others wait for it and take it over.

    Every task of a run calls it with the same words in the same order: the learner's name, its settings and
    the number of the call tell learners apart. A resumed run takes over what it has learned before. `learn`
    returns JSON.

    Raises:
        WaitTimeoutError: another task takes too long.
    """
    name = f"{who} {what}"
    _calls[name] += 1
    key = sha256(f"{name} {_calls[name]}".encode()).hexdigest()[:24]
    if _over_hosts is None:
        return _learned_on_this_host(key, who, learn)
    state = _over_hosts(key, who, WAIT_S, lambda: msgspec.json.encode(_learned_on_this_host(key, who, learn)))
    if not state:
        return _learned_on_this_host(key, who, learn)
    try:
        return msgspec.json.decode(state, type=list[Any])
    except ValueError as error:
        raise InputError(f"adapt {who}: what the leader has learned is damaged: {error}") from None


def _learned_on_this_host(key: str, who: str, learn: Callable[[], list[Any]]) -> list[Any]:
    return once_in_run(
        f"{FOLDER}/{ADAPTED}/{key}.json",
        _kept,
        learn,
        lambda write, learned: write(msgspec.json.encode(learned)),
        WAIT_S,
        f"adapt {who}",
    )


def _kept(path: Path) -> list[Any] | None:
    with suppress(OSError, ValueError):  # not there yet, or damaged: it is learned anew
        return msgspec.json.decode(read_regular(path, BYTES_MAX, follow=False), type=list[Any])
    return None
