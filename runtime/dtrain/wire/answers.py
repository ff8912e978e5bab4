"""What a thread has received for another one, which looks after other things as long as nothing comes."""

import queue
from collections.abc import Callable
from typing import TypeVar

LOOK_S = 0.5

Meanwhile = Callable[[], None] | None
Item = TypeVar("Item")


def next_of(answers: "queue.SimpleQueue[Item]", meanwhile: Meanwhile = None) -> Item:
    """The next item; until there is one, `meanwhile` is called every `LOOK_S`.

    Python, too, has its turn then: a signal that comes just before a wait for ever is heard when the wait
        ends.
    """
    while True:
        try:
            return answers.get(timeout=LOOK_S)
        except queue.Empty:
            if meanwhile is not None:
                meanwhile()
