"""Results of reading data once for all tasks of a run, kept for a resume: rule *Learned once*
(docs/design/protocol.md#learned-once).

The tasks of one host share the run directory: the first one to come learns, and the others wait for its file.
Tasks of several hosts share none: there the leader learns, and the others ask it through the control plane.
"""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dtrain.data.build_once import UnwritableError, Write, build_once
from dtrain.data.record_index.index_files import FOLDER
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import read_regular
from dtrain.process.assignment import RUN_DIR

ADAPTED = "adapted"
WAIT_S = 3600.0
"""How long one task may take to learn from its data while the others wait; they name it."""
BYTES_MAX = 1 << 30

_calls: Counter[str] = Counter()


class OverHosts(Protocol):
    """The way from this task to the leader, in a run whose tasks share no run directory."""

    def begin(self) -> bool:
        """Take part in the run, so that no task counts as lost meanwhile; return whether this one leads."""

    def send(self, key: str, state: bytes) -> None:
        """Leader: tell the others what it has learned."""

    def ask(self, key: str, who: str, wait_s: float) -> bytes:
        """Return what the leader has learned; empty: this task has to learn for itself."""


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
    way = _over_hosts
    if way is None:
        return _learned_on_this_host(key, who, learn)
    if way.begin():
        learned = _learned_on_this_host(key, who, learn)
        way.send(key, msgspec.json.encode(learned))
        return learned
    if not (state := way.ask(key, who, WAIT_S)):
        return _learned_on_this_host(key, who, learn)
    try:
        return msgspec.json.decode(state, type=list[Any])
    except ValueError as error:
        raise InputError(f"adapt {who}: what the leader has learned is damaged: {error}") from None


def _learned_on_this_host(key: str, who: str, learn: Callable[[], list[Any]]) -> list[Any]:
    run_dir = os.environ.get(RUN_DIR)
    if not run_dir:
        return learn()
    learned = cache(learn)

    def make(write: Write) -> list[Any]:
        write(msgspec.json.encode(learned()))
        return learned()

    path = Path(run_dir) / FOLDER / ADAPTED / f"{key}.json"
    try:
        return build_once(path, _kept, make, WAIT_S, f"adapt {who}", makes_folder=True)
    except UnwritableError:  # without room for it every task learns for itself
        return learned()


def _kept(path: Path) -> list[Any] | None:
    with suppress(OSError, ValueError):  # not there yet, or damaged: it is learned anew
        return msgspec.json.decode(read_regular(path, BYTES_MAX, follow=False), type=list[Any])
    return None
