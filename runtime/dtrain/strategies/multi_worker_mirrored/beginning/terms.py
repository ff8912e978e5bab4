"""The terms of a call of `fit`, as its leader tells them to all that take part."""

from dtrain.messages import Entered
from dtrain.protocol.part_dealer import Dealt
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.start import Start


def terms_of(
    generation: Generation, start: Start, dealt: Dealt, leader: int, ranks: int, directory: str
) -> Entered:
    """Return what is told of a call of `fit`, but for who takes part.

    Args:
        generation, start: what begins, and where.
        dealt: which parts of batches were dealt before.
        leader: the rank that leads.
        ranks: how many replicas there may ever be.
        directory: where the leader saves.
    """
    return Entered(
        generation=generation.number,
        version=start.version,
        max_steps=generation.max_steps,
        leader=leader,
        lineage=start.lineage,
        dealt=dealt,
        optimizer=start.optimizer,
        tally=start.tally,
        history={fit: dict(rows) for fit, rows in start.history.items()},
        ranks=ranks,
        directory=directory,
    )
