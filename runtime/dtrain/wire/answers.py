"""What a thread has received for another one, which looks after other things as long as nothing comes."""

import queue
from typing import TypeVar

from dtrain.wire.channel import Meanwhile

LOOK_S = 0.5

Item = TypeVar("Item")


def next_of(answers: "queue.SimpleQueue[Item]", meanwhile: Meanwhile) -> Item:
    """The next item; until there is one, `meanwhile` is called every `LOOK_S`."""
    while meanwhile is not None:
        try:
            return answers.get(timeout=LOOK_S)
        except queue.Empty:
            meanwhile()
    return answers.get()
