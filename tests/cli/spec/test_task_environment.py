"""`environment` and `secrets`: what tasks get besides."""

import json

import pytest
from row_by_row import every_row

from dtrain.config.sections import missing_secrets
from dtrain.errors import SpecError
from dtrain_cli.spec import read_spec


def read(tmp_path, **sections):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"cluster": {"chief": 1, "ps": 1}, **sections}))
    return read_spec(path)


def test_a_spec_names_variables_and_secrets(tmp_path):
    spec = read(tmp_path, environment={"NAME": "value"}, secrets=["TOKEN"])
    assert spec.environment == {"NAME": "value"}
    assert spec.secrets == ("TOKEN",)


@every_row(
    "sections, message",
    [
        ({"environment": {"A-B": "1"}}, "expected the name of a variable"),
        ({"environment": {"TF_CONFIG": "{}"}}, "TF_CONFIG is a variable that dtrain sets itself"),
        ({"environment": {"DTRAIN_SECRET": "x"}}, "DTRAIN_SECRET is a variable that dtrain sets itself"),
        ({"environment": {"NAME": 1}}, "environment.NAME"),
        ({"environment": {"NAME": "a\0b"}}, "expected a text without NUL"),
        ({"secrets": ["A B"]}, "expected the name of a variable"),
        ({"secrets": ["TOKEN"], "environment": {"TOKEN": "x"}}, "where everybody may read it"),
        ({"secrets": "TOKEN"}, "secrets"),
    ],
)
def test_what_is_wrong_with_them_is_said(tmp_path, sections, message):
    with pytest.raises(SpecError, match=message):
        read(tmp_path, **sections)


def test_secrets_that_are_not_there_are_named():
    assert missing_secrets(["A", "B"], {"A": "1", "B": "2"}) is None
    assert missing_secrets(["A", "B", "C"], {"B": "2"}) == "secrets: A, C are not set in the environment here"
