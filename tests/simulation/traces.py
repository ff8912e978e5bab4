"""traces.py SEED...: print what happens in the simulated run of each seed, as one line of JSON: the seed, and a text for
every message that is sent, for every one that a server hears, and for every event.
"""

import gc
import json
import sys
from typing import Any
from zlib import crc32

from simulation.judging.judge import Judge
from simulation.network import Blocks, Wire
from simulation.scenario import Scenario, draw
from simulation.world import World, outcome

from dtrain.messages import AnyMessage


class Witness(Judge):
    """A judge that also writes down what travels, with its time to the last bit and a checksum of its blocks."""

    def __init__(self, scenario: Scenario, story: list[str]) -> None:
        super().__init__(scenario)
        self._story = story

    def sent(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        self._note("sends", wire, message, blocks)
        super().sent(wire, message, blocks)

    def answered(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        self._note("is answered", wire, message, blocks)
        super().answered(wire, message, blocks)

    def _note(self, what: str, wire: Wire, message: Any, blocks: Blocks) -> None:
        checksum = 0
        for block in blocks:
            checksum = crc32(block.tobytes(), checksum)
        self._story.append(f"{wire.network.clock.now!r} {wire} {what} {message} {checksum}")


def trace(seed: int) -> list[str]:
    """Return everything that happens in the run of a seed, and what is wrong with it."""
    story: list[str] = []
    scenario = draw(seed)
    reason = outcome(World(scenario, story, Witness(scenario, story)))
    return [str(scenario), *story, f"=> {reason}"]


if __name__ == "__main__":
    gc.set_threshold(50_000)  # as in the tests: see conftest.py
    for each in map(int, sys.argv[1:]):
        print(json.dumps([each, trace(each)]))
