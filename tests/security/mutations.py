"""Mutations of sound files: of bytes, of the data in JSON, and of what stands in headers. A seed makes each again."""

import json
from random import Random
from typing import Any

TOKENS = (
    *(b"\x00", b"\xff" * 8, b"\x7f\xff\xff\xff", b"\\ud800", b'"\\udfff"', b"NaN", b"-Infinity", b"1e999"),
    *(
        b"9" * 25,
        b"9" * 5000,
        b"[" * 200,
        b"{}" * 50,
        b"../../etc/passwd",
        b"__import__('os')",
        b"\xc2\x9b2J",
    ),
    *(b"\x1b]0;x\x07", b"\n", b'"', b",", b":", b"%s%n", b"-1", b"true", b"null"),
)
SCALARS = (
    *(
        None,
        True,
        False,
        -1,
        0,
        1,
        2,
        7,
        255,
        2**31,
        2**32,
        2**62,
        2**63,
        2**64,
        -(2**63) - 1,
        10**30,
        0.5,
        -0.0,
    ),
    *(1e308, float("nan"), float("inf"), "", "x", "os.system", "builtins.eval", "/etc/passwd", "worker:0"),
    *("ps:9", "Dense", "sum", "\ud800", "\x1b[2J\u009b\u202e", "n" * 3000, "9" * 5000, "1e5"),
)


def value(chance: Random) -> Any:
    """Return data that a file would never hold in this place."""
    kind = chance.random()
    if kind < 0.75:
        return chance.choice(SCALARS)
    if kind < 0.85:
        return [chance.choice(SCALARS) for _ in range(chance.randrange(4))]
    if kind < 0.95:
        return {str(chance.choice(SCALARS)): chance.choice(SCALARS) for _ in range(chance.randrange(3))}
    deep: Any = []
    for _ in range(chance.choice((3, 40, 400))):
        deep = [deep]
    return deep


def some_bytes(data: bytes, others: list[bytes], chance: Random) -> bytes:
    """Change bytes in one to four places: flipped, overwritten, cut, repeated, taken from another file."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 2, 8, 64, 1000)))
        match chance.randrange(8):
            case 0 if data:
                at = min(at, len(data) - 1)
                data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at]
            case 2:
                data = data[:at] + data[end:]
            case 3:
                data = data[:end] + data[at:]
            case 4:
                other = chance.choice(others)
                data = data[:at] + other[chance.randrange(len(other) + 1) :]
            case 5:
                data = data[:at] + chance.choice(TOKENS) + data[at:]
            case 6:
                data = data[:at] + chance.choice(TOKENS) + data[end:]
            case _:
                data = data[:at] + chance.randbytes(end - at) + data[end:]
    return data


def _places(data: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [data]
    while waiting:
        node = waiting.pop()
        for key in (
            list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        ):
            found.append((node, key))
            waiting.append(node[key])
    return found


def some_data(data: Any, chance: Random) -> Any:
    """Change JSON data in place in one to three places; return it, or other data in its place."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = _places(data)
        if not places or chance.random() < 0.01:
            return value(chance)
        node, key = chance.choice(places)
        match chance.randrange(6):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[str(chance.choice(SCALARS))] = node.pop(key)
            case 2:
                other, where = chance.choice(places)
                node[key] = json.loads(json.dumps(other[where])) if where in _keys(other) else None
            case 3 if isinstance(node, list):
                node.insert(key, json.loads(json.dumps(node[key])))
            case 4 if isinstance(node[key], int | float):
                node[key] = chance.choice((-node[key], node[key] + 1, node[key] * 10**6, str(node[key])))
            case _:
                node[key] = value(chance)
    return data


def _keys(node: Any) -> Any:
    return node if isinstance(node, dict) else range(len(node))


def some_json(text: bytes, chance: Random) -> bytes:
    """Return JSON of changed data."""
    return json.dumps(some_data(json.loads(text), chance)).encode()
