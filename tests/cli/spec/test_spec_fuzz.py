"""Whatever stands in a spec: a checked spec or one SpecError that names the file, never another exception."""

import json

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dtrain.config import RunSpec
from dtrain.errors import SpecError
from dtrain_cli.spec import parse_toml, parse_yaml_tree, read_spec

NAMES = [
    *RunSpec.__struct_fields__,
    *(
        name
        for field in msgspec.structs.fields(RunSpec)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        for name in field.type.__struct_fields__
    ),
]
KEYS = st.sampled_from(
    [
        *NAMES,
        "worker:0",
        "task",
        "at_s",
        "for_s",
        "between",
        "fixed_shards",
        "policy",
        "max",
        "bogus",
    ]
)
SCALARS = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        3,
        -1,
        10**30,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "sync",
        "worker:0",
        "a:1",
        "\u20ac",
        "3",
        "none",
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def refusal(read, *arguments) -> str:
    """What it was refused with, or nothing."""
    try:
        read(*arguments)
    except SpecError as error:
        return str(error)
    return ""


def check(path, data) -> None:
    path.write_text(json.dumps(data))
    assert all(line.startswith(f"{path}:") for line in refusal(read_spec, path).splitlines())


@settings(deadline=None, max_examples=75)
@given(VALUES)
@example({"cluster": {"worker": {"a:1": 1}}})
@example({"simulate": {"kill": [{"task": "worker:0"}], "network": [{"between": ["a", "b", "c"]}]}})
@example({"restart": {"worker": {"max": 10**30}, "chief": 3}})
def test_any_structure(tmp_path_factory, data):
    check(tmp_path_factory.getbasetemp() / "fuzz.json", data)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.sampled_from(list(RunSpec.__struct_fields__)), VALUES, max_size=5))
def test_any_sections(tmp_path_factory, data):
    check(tmp_path_factory.getbasetemp() / "fuzz.json", data)


@settings(deadline=None, max_examples=200)
@given(st.text(st.sampled_from("a:1 -\n\t[]{},'\"#|>&*!%@?0\\x\u20ac~<=."), max_size=40))
@example("a: !!timestamp x")
@example("a: !!float x")
@example("!!set {a, b}")
@example("!!omap [a: 1]")
@example("a: !!binary x")
@example("%TAG ! tag:x,2000:\n--- !foo {a: 1}")
@example("<<: [1]")
@example("<<: {a: 1}\na: 2")
@example("? {a: 1}\n: 2")
@example("a: 1e999999999")
@example("a: 0o9")
@example("a: " + "9" * 5000)
def test_any_text(text):
    for parse in (parse_yaml_tree, parse_toml):
        said = refusal(parse, text, "file")
        assert said == "" or said.startswith("file:")


@settings(deadline=None, max_examples=75)
@given(st.lists(st.sampled_from([*NAMES, "0", "1", "worker:0", ""]), min_size=1, max_size=4), VALUES)
def test_any_set(keys, value):
    text = f"{'.'.join(keys)}={json.dumps(value)}"
    lines = refusal(read_spec, None, [text]).splitlines()
    assert all(line.startswith(("--set", "the default spec:")) for line in lines)
