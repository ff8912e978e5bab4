"""An address has no user's name: `me@10.0.0.1:2222` is how one logs in, not where a task serves."""

import json

import pytest

from dtrain.errors import SpecError
from dtrain.process.tensorflow import read_tf_config


def test_an_address_with_a_users_name_is_refused():
    config = {"cluster": {"worker": ["me@10.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}}
    with pytest.raises(SpecError, match="a user's name or a scheme"):
        read_tf_config(json.dumps(config))
