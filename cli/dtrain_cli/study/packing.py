"""Packing: how many trials run at a time on the free cores and bytes of this machine. Pure."""

import math
from collections.abc import Iterable

import msgspec

from dtrain.studies.study_spec import StudySpec


class TrialNeeds(msgspec.Struct, frozen=True):
    """The cores and bytes of one trial; None: not known until one has run."""

    cores: float
    nbytes: int | None


class Room(msgspec.Struct, frozen=True):
    """The cores of this machine, and the bytes that are free or held by trials that run."""

    cores: float
    nbytes: int


def needs_of(spec: StudySpec, replicas: int, peaks: Iterable[int | None]) -> TrialNeeds:
    """Return what a trial takes: as the study says; else a core a replica, and the highest peak so far."""
    measured = max((peak for peak in peaks if peak), default=None)
    said = spec.resources
    return TrialNeeds(float(max(1, replicas)) if said.cores is None else said.cores, said.nbytes or measured)


def how_many(needs: TrialNeeds, room: Room) -> int:
    """Return how many trials fit: at least one, which has the machine to itself."""
    fit = math.floor(room.cores / needs.cores + 1e-9)
    if needs.nbytes:
        fit = min(fit, room.nbytes // needs.nbytes)
    return max(1, fit)


def packing_text(needs: TrialNeeds, room: Room, wanted: int) -> str | None:
    """Return why fewer trials run at a time than are wanted; None: all do."""
    if (fit := how_many(needs, room)) >= wanted:
        return None
    by_cores = math.floor(room.cores / needs.cores + 1e-9) <= fit
    why = f"{needs.cores:g} of {room.cores:g} cores" if by_cores else _memory_text(needs, room)
    fits = f"{fit} {'fits' if fit == 1 else 'fit'}; {wanted - fit} wait"
    return f"{fits}: a trial takes {why} (`resources` says otherwise)"


def _memory_text(needs: TrialNeeds, room: Room) -> str:
    return f"{(needs.nbytes or 0) / 1e9:.2g} of {room.nbytes / 1e9:.2g} GB of memory"


def blind_text(parallel: int, total: int) -> str | None:
    """Return the advice for samplers that learn from results; None where one trial runs after the other."""
    blind = min(parallel, total)
    if blind <= 1:
        return None
    return (
        f"{blind} of {total} trials start before the first result is known; to learn as much as {total} in "
        f"turn, use about {total + blind} (max_trial_count)"
    )
