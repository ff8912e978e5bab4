"""The ports that an agent holds for the tasks of its host."""

import errno
import itertools
from collections.abc import Iterator

from dtrain.errors import RunError
from dtrain.process.open_files import allow_open_files
from dtrain_cli.agent.messages import Held, HoldPorts
from dtrain_cli.plan.ports import HeldPorts, pick_port

_PICKS_MAX = 100
_OTHER_FILES = 128


def hold(order: HoldPorts, held: HeldPorts) -> Held:
    """Hold as many ports as an order wants, or none; the answer says which, or why there are none."""
    allow_open_files(2 * (len(held.ports) + order.count) + _OTHER_FILES)
    found: list[int] = []
    for port in _candidates(order, held):
        if len(found) == order.count:
            break
        try:
            held.hold(order.address, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            problem = f"{order.address} cannot be bound: {error.strerror}"
            return _none(found, held, problem)
        found.append(port)
    if len(found) == order.count:
        if order.loose:
            held.release(found[-1])
        return Held(found)
    where = f"{order.first} to {order.last}" if order.first else "any"
    return _none(found, held, f"{order.count} free ports are needed on {order.address} ({where})")


def _candidates(order: HoldPorts, held: HeldPorts) -> Iterator[int]:
    yield from order.wanted
    taken = {*order.wanted, *held.ports}
    if order.first:
        yield from (port for port in range(order.first, order.last + 1) if port not in taken)
        return
    for _ in itertools.repeat(None, order.count + _PICKS_MAX):
        try:
            yield pick_port()
        except RunError:
            return


def _none(found: list[int], held: HeldPorts, problem: str) -> Held:
    for port in found:
        held.release(port)
    return Held([], problem)
