"""The form of every message, as data: what two builds of one protocol version must agree on.

python tests/messages/freezing.py     write the file of the version that messages/opening.py names
"""

import json
import typing
from enum import EnumMeta
from pathlib import Path

import msgspec

from dtrain import messages
from dtrain.messages import PROTOCOL_VERSION, AnyMessage, Challenge, Opening, Proof
from dtrain.wire.ahead import Ahead

FOLDER = Path(__file__).parent


def described() -> dict[str, list[str]]:
    """Return, of every message and of every type within one, its fields in their order with types and defaults."""
    found: dict[str, list[str]] = {}
    waiting: list[object] = [*typing.get_args(AnyMessage), Ahead, Opening, Challenge, Proof]
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if isinstance(kind, EnumMeta):
            found[kind.__name__] = sorted(str(member.value) for member in kind)
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__ not in found:
            fields = msgspec.structs.fields(kind)
            tag = f"tag {kind.__struct_config__.tag}" if kind.__struct_config__.tag else "no tag"
            form = "array" if kind.__struct_config__.array_like else "map"
            found[kind.__name__] = [f"{form}, {tag}", *map(_field, fields)]
            waiting += [field.type for field in fields]
    return dict(sorted(found.items()))


def _field(field: msgspec.structs.FieldInfo) -> str:
    kind = (
        field.type.__name__
        if isinstance(field.type, type) and not typing.get_args(field.type)
        else field.type
    )
    text = f"{field.encode_name}: {kind}".replace("typing.", "")
    for module in ("dtrain.messages.opening.", "dtrain.messages.steps.", "dtrain.messages.message."):
        text = text.replace(module, "")
    return text if field.required else f"{text} = ..."


def path(version: int) -> Path:
    """Return the file that holds the form of a version."""
    return FOLDER / f"protocol_{version}.json"


if __name__ == "__main__":
    if path(PROTOCOL_VERSION).exists():
        raise SystemExit(
            f"version {PROTOCOL_VERSION} is frozen: raise PROTOCOL_VERSION in {messages.__file__}"
        )
    path(PROTOCOL_VERSION).write_text(json.dumps(described(), indent=1) + "\n")
