"""Every public name of TensorFlow 2.15.1 is there, or is answered with what to use (names_reference.py)."""

from pathlib import Path

import pytest

import dtrain as dt

NAMES = {
    line.split()[0]: line.split()[1:]
    for line in Path(__file__).with_name("tensorflow_names.txt").read_text().splitlines()
    if not line.startswith("#")
}


@pytest.mark.parametrize("module", NAMES)
def test_a_name_is_there_or_is_answered(module):
    owner = dt
    for part in module.split(".") if module != "dtrain" else ():
        owner = getattr(owner, part)
    unanswered = []
    for name in NAMES[module]:
        try:
            getattr(owner, name)
        except AttributeError as error:
            if "; " not in str(error):
                unanswered.append(name)
    assert not unanswered
