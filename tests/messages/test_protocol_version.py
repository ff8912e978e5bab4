"""A version of the protocol has one form: two builds that say the same version read the same fields."""

import json

import msgspec
import pytest
from messages.freezing import FROZEN, described

from dtrain.messages import PROTOCOL_VERSION, AnyMessage, Challenge, Opening, Push

ADVICE = (
    "the messages have changed: run `python tests/messages/freezing.py`, and once a version of dtrain has been released, "
    "raise PROTOCOL_VERSION in runtime/dtrain/messages/opening.py as well"
)


def test_the_messages_have_the_form_that_is_written_down():
    assert described() == json.loads(FROZEN.read_text()), ADVICE


def test_the_version_is_the_first_thing_that_either_end_says():
    opening = Opening(task="worker:0", nonce=b"")
    assert msgspec.to_builtins(opening)[:2] == ["Opening", PROTOCOL_VERSION]
    challenge = Challenge(salt=b"", nonce=b"")
    assert msgspec.to_builtins(challenge)[:2] == ["Challenge", PROTOCOL_VERSION]


def test_a_message_with_one_field_more_is_not_taken_for_another_one():
    push = Push(generation=1, incarnation=2, sequence=3, base_version=4, plan_hash="p")
    told = msgspec.to_builtins(push)
    changed = msgspec.msgpack.encode([told[0], "new", *told[1:]])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(changed, type=AnyMessage)
