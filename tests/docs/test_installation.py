"""How dtrain and its extras are installed is said in one way: from a clone, as no package index has it."""

import re
import tomllib

from docs.pages import PAGES, ROOT

TEXTS = [
    *PAGES,
    *(path for folder in ("runtime", "cli", "examples") for path in (ROOT / folder).rglob("*.py")),
]


def test_nothing_tells_to_install_dtrain_from_an_index():
    telling = [
        str(path.relative_to(ROOT)) for path in TEXTS if re.search(r"pip install '?dtrain", path.read_text())
    ]
    assert not telling


def test_every_extra_that_is_told_of_exists_and_is_quoted_for_the_shell():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = {}
    for path in TEXTS:
        for quoted, extra in re.findall(r"pip install -e ('?)\.\[([\w,]+)\]", path.read_text()):
            told[extra] = told.get(extra, True) and bool(quoted)
    assert set(told) >= {"data", "images", "onnx", "remote", "tls", "torch"}
    assert not set(told) - set(extras)
    assert all(told.values())
