"""The form of every message, as data: what two builds of one protocol version must agree on.

python tests/messages/freezing.py     write it down
"""

import json
import typing
from enum import EnumMeta
from functools import reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin

import msgspec

from dtrain.config import choices
from dtrain.messages import AnyMessage, Challenge, Opening, Proof, Proven

FROZEN = Path(__file__).parent / "protocol.json"


def described() -> dict[str, list[str]]:
    """Return, of every message and of every type within one, its fields in their order with types and defaults."""
    found: dict[str, list[str]] = {}
    waiting: list[object] = [*get_args(AnyMessage), Opening, Challenge, Proof, Proven]
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, EnumMeta) and kind.__module__ != choices.__name__:
            found[kind.__name__] = sorted(str(member.value) for member in kind)
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__ not in found:
            fields = msgspec.structs.fields(kind)
            tag = f"tag {kind.__struct_config__.tag}" if kind.__struct_config__.tag else "no tag"
            form = "array" if kind.__struct_config__.array_like else "map"
            found[kind.__name__] = [f"{form}, {tag}", *map(_field, fields)]
            waiting += [field.type for field in fields]
    return dict(sorted(found.items()))


def _field(field: msgspec.structs.FieldInfo) -> str:
    kind = field.type
    if get_origin(kind) is UnionType or isinstance(kind, EnumMeta):
        kind = reduce(or_, map(_words, get_args(kind) or [kind]))
    if isinstance(kind, type) and not get_args(kind):
        kind = kind.__name__
    text = f"{field.encode_name}: {kind}".replace("typing.", "")
    for module in ("dtrain.messages.opening.", "dtrain.messages.steps.", "dtrain.messages.message."):
        text = text.replace(module, "")
    return text if field.required else f"{text} = ..."


def _words(kind: typing.Any) -> typing.Any:
    """Return what travels of a setting's enum: one of its texts."""
    if isinstance(kind, EnumMeta) and kind.__module__ == choices.__name__:
        return typing.Literal[tuple(member.value for member in kind)]
    return kind


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(described(), indent=1) + "\n")
