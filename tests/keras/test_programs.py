"""The mission's programs, of which only the import is another's, print what they print with TensorFlow 2.15.1.

`reference_of_programs.py` has written down what that is.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

PROGRAMS = Path(__file__).parent / "programs"
PRINTED = json.loads((PROGRAMS / "printed.json").read_text())
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")


def same_lines(text, expected, rtol=2e-4):
    """The lines are those that were expected, but for the last digits of numbers; lines of progress are not
    looked at.
    """
    lines = [line for line in text.splitlines() if not re.match(r"epoch \d+/", line)]
    assert [re.sub(r"\s", "", NUMBER.sub("#", line)) for line in lines] == [
        re.sub(r"\s", "", NUMBER.sub("#", line)) for line in expected
    ], text
    for line, other in zip(lines, expected, strict=True):
        found, wanted = (np.array(NUMBER.findall(each), float) for each in (line, other))
        np.testing.assert_allclose(found, wanted, rtol, atol=2e-5, err_msg=f"{line}\n{other}")


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_alone_it_prints_what_it_prints_with_tensorflow(name, launcher):
    command = launcher.run(PROGRAMS / f"{name}.py")
    assert command.end() == 0, command.err
    same_lines(command.out, PRINTED[name])
