"""What commands print with --json, held against the schemas that users have."""

import json
from pathlib import Path

import pytest

SCHEMAS = Path(__file__).parents[1] / "docs" / "reference" / "schemas"


def is_of(name, value):
    """Whether a value has the form that the schema of a command gives it, and no field besides."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with dtrain[manifests]")
    schema = _closed(_read(f"{name}.json"))
    jsonschema.Draft202012Validator.check_schema(schema)
    problems = list(jsonschema.Draft202012Validator(schema).iter_errors(value))
    assert not problems, (name, problems[0].message)


def _read(file):
    """A schema, with others in the places of references to their files."""

    def whole(schema):
        if isinstance(schema, list):
            return [whole(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        there = _read(schema["$ref"]) if "$ref" in schema else {}
        return there | {key: whole(value) for key, value in schema.items() if key != "$ref"}

    return whole(json.loads((SCHEMAS / file).read_text()))


def _closed(schema):
    """A schema that admits no field which it does not describe; one for users admits those of later versions."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return (
        {"additionalProperties": False, **closed} if "properties" in schema and "type" in schema else closed
    )
