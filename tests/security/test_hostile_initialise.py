"""A leader that says nonsense is refused in a sentence: whatever the plan, the optimizer and the tables are."""

import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roles.by_hand import Hand

from dtrain.learning import optimizers
from dtrain.messages import Initialise, Initialised, Refusal
from dtrain.variables import VariableSpec

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
    st.just("Adam"),
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
HANDS = {
    "sync": Hand(updates="sync", optimizer=optimizers.Adam(0.1), servers=2),
    "async": Hand(variables=(VariableSpec("t", (5, 2), sparse=True), VariableSpec("b", (3,)))),
}


@st.composite
def damaged(draw, whole):
    """Data with one value in it replaced, added or left out."""
    if not isinstance(whole, dict | list) or not whole or draw(st.integers(0, 4)) == 0:
        return draw(DATA)
    kept = dict(whole) if isinstance(whole, dict) else list(whole)
    key = draw(st.sampled_from(sorted(kept)) if isinstance(kept, dict) else st.integers(0, len(kept) - 1))
    if draw(st.integers(0, 5)) == 0:
        del kept[key]
    else:
        kept[key] = draw(damaged(kept[key]))
    return kept


@pytest.mark.parametrize("updates", HANDS)
@settings(max_examples=int(os.environ.get("DTRAIN_FUZZ", "100")))
@given(data=st.data())
def test_nonsense_is_refused_or_taken_and_nothing_else(updates, data):
    hand = HANDS[updates]
    fields = msgspec.to_builtins(hand.initialisation(), str_keys=False)[1:]
    names = Initialise.__struct_fields__
    place = data.draw(st.sampled_from([index for index, name in enumerate(names) if name != "training"]))
    raw = msgspec.msgpack.encode(["Initialise", *fields])
    values = msgspec.msgpack.decode(raw)
    values[place + 1] = data.draw(damaged(values[place + 1]))
    if isinstance(values[1], dict):  # the state
        values[1]["generation"] = 1
    try:
        message = msgspec.msgpack.decode(msgspec.msgpack.encode(values), type=Initialise)
    except (msgspec.ValidationError, OverflowError):
        return  # the edge refuses it
    hand.servers[0].held = None
    hand.servers[0]._loading = None
    blocks = hand.blocks(0)[: data.draw(st.integers(0, 4))]
    first = hand.say("chief:0", message, blocks)[0].message
    assert isinstance(first, Initialised | Refusal)
