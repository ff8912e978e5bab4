"""What a server does about the leader's orders; see `order`. Machine."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dtrain.errors import DtrainError
from dtrain.messages import Control, Controlled, Hold, Holding, NotReady, Refusal
from dtrain.parameters.change import Change
from dtrain.roles.parameter_server.actions import Action, Caller, Send
from dtrain.roles.parameter_server.held import Held

Blocks = Sequence[np.ndarray[Any, Any]]


def obey(
    caller: Caller, held: Held | None, message: Hold | Control, blocks: Blocks, now: float
) -> Iterator[Action]:
    """Hold, or change; what comes late, or a second time, changes nothing."""
    if held is None or held.generation != message.generation:
        yield Send(caller, NotReady(reason="this server holds no such variables"))
    elif isinstance(message, Hold):
        late = message.number <= held.order
        version = held.pushes.version if late else held.pushes.hold()
        yield Send(
            caller,
            Holding(
                term=held.term,
                version=version,
                optimizer=held.store.optimizer_config,
                stopped=held.stopped,
                assigned=held.store.heard_assigned,
            ),
        )
    elif held.term != message.term:
        yield Send(caller, NotReady(reason=f"this server does not hold term {message.term}"))
    else:
        yield from _change(caller, held, message, blocks, now)


def _change(caller: Caller, held: Held, message: Control, blocks: Blocks, now: float) -> Iterator[Action]:
    if message.number > held.order:
        if message.stop:
            held.stopped, held.max_steps = True, message.version
            held.store.end_at(message.version, held.pushes.version)
        try:
            held.store.change(
                Change(message.version, message.optimizer, blocks, message.number), held.pushes.version
            )
        except DtrainError as error:
            yield Send(caller, Refusal(reason=str(error)))
            return
        held.order = message.number
        held.pushes.release(message.until)
        if message.stop:
            yield from held.pushes.end_at(message.version, held.seen)
    yield Send(caller, Controlled())
    yield from held.pushes.share_out(held.seen, now)
