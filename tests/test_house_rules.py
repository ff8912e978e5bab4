"""Each rule of house_rules.py finds what breaks it, and nothing in files that keep it."""

import house_rules
import pytest
from house_rules import MAX_FILE_LINES, MAX_FUNCTION_LINES, RULES, Tree
from row_by_row import every_row

KEPT = {
    "runtime/dtrain/one/__init__.py": "from dtrain.one.short import Short\n",
    "runtime/dtrain/one/short.py": "class Short(Shape):\n    size = 1\n    def grow(self): return self.size + 1\n",
    "runtime/dtrain/one/user.py": '''
from typing import Protocol
from dtrain.one.short import Short
class Shape(Protocol):
    size: int
    def grow(self) -> int: ...
class Long:
    def __init__(self): self.size = 2
    def grow(self):
        """Return the size after a day of rain."""
        return self.size * 2
class Callable(Protocol):
    def __call__(self) -> None: ...
def eight(a, b, c, d, e, f, g, h): pass
''',
    "runtime/dtrain/two/short.py": "import dtrain.one.user\n",
    "cli/dtrain_cli/table.txt": "# words\n\none 1\ntwo 2\n",
}
USER = KEPT["runtime/dtrain/one/user.py"]
BROKEN = {
    "long-file": (
        {"one/user.py": USER + "\n" * MAX_FILE_LINES},
        {"one/user.py -"},
    ),
    "imported-once": (
        {
            "one/__init__.py": "",
            "one/deep/short.py": "",
            "one/deep/user.py": "import dtrain.one.deep.short\n",
        },
        {"one/deep/short.py dtrain.one.deep.user", "one/short.py dtrain.one.user"},
    ),
    "long-function": (
        {"one/short.py": "class Short:\n  def grow(self):\n" + "    size = 1\n" * MAX_FUNCTION_LINES},
        {"one/short.py Short.grow"},
    ),
    "many-parameters": (
        {"one/short.py": "class Short:\n  def __init__(self, a, b, c, d, e, *f, g, h=1, **i): pass\n"},
        {"one/short.py Short.__init__"},
    ),
    "name-of-two-classes": (
        {
            "two/short.py": "def make():\n    class Long: pass\nclass Adam: pass\n",
            "two/legacy.py": "class Adam: pass\n",
        },
        {"one/user.py Long", "two/short.py Long"},
    ),
    "one-implementation": (
        {"one/short.py": "class NoShape(Shape):\n    size = 0\n    def grow(self): return 0\n"},
        {"one/user.py Shape"},
    ),
    "docstring-repeats-signature": (
        {
            "one/short.py": '''
class Short:
    def __init__(self): """Begin."""
    def size_of(self, row_count: int): """Return the size of a row count."""
    def grow(self):
        """See `Shape.grow`."""
    def told(self):
        """Return whether it was told.

        Raises:
            ValueError: never before noon.
        """
'''
        },
        {f"one/short.py Short.{name}" for name in ("__init__", "size_of", "grow")},
    ),
}


def broken(rule: str) -> Tree:
    """The files that keep all rules, with some that break one of them."""
    return Tree({**KEPT, **{f"runtime/dtrain/{path}": text for path, text in BROKEN[rule][0].items()}})


def test_files_that_keep_every_rule_are_found_in_none():
    assert house_rules.findings(Tree(KEPT)) == set()


@every_row("rule", RULES)
def test_a_rule_finds_what_breaks_it(rule):
    assert {f"{path} {name}" for path, name in RULES[rule](broken(rule))} == {
        f"runtime/dtrain/{found}" for found in BROKEN[rule][1]
    }


def test_public_functions_may_have_the_parameters_and_the_short_docstrings_of_keras():
    public = frozenset({"dtrain.one.short.Short"})
    for rule, remain in (("many-parameters", set()), ("docstring-repeats-signature", {"Short.grow"})):
        found = RULES[rule](Tree(broken(rule).texts, public))
        assert {name for _, name in found} == remain


def test_what_was_mended_is_dropped_from_the_list_and_nothing_is_added(tmp_path, monkeypatch):
    lines = [
        "long-file runtime/dtrain/one/user.py -",
        "long-function runtime/dtrain/one/short.py Short.grow  # why",
    ]
    exceptions, budget = tmp_path / "exceptions.txt", tmp_path / "budget.md"
    exceptions.write_text("\n".join(lines))
    budget.write_text("| all of it | `runtime` `cli` | 1,000 |\n| all |  | 90 |\n")
    monkeypatch.setattr(house_rules, "EXCEPTIONS", exceptions)
    monkeypatch.setattr(house_rules, "BUDGET", budget)
    monkeypatch.setattr(house_rules, "tree", lambda: broken("long-function"))
    house_rules.main()
    assert exceptions.read_text() == f"{lines[1]}\n"
    assert budget.read_text().splitlines() == [
        "| all of it | `runtime` `cli` | 100 |",
        "| all |  | 90 |",
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""A module."""\n\n# A comment.\nx = 1\n', 1),
        ("PROGRAM = 'import os\\nx = 1\\nprint(os.getpid())\\n'\n", 3),
        ("TEXT = 'one\\ntwo\\nthree four\\n'\n", 1),
        ('PROGRAM = """import os\nx = 1\n"""\n', 3),
    ],
)
def test_code_lines_are_those_that_are_not_blank_comment_or_docstring_and_those_of_programs_in_strings(
    text, lines
):
    assert house_rules.code_lines(Tree({"runtime/dtrain/a.py": text}), "runtime/dtrain/a.py") == lines


def test_a_file_counts_for_the_longest_path_and_each_belongs_to_one():
    paths = {
        "runtime/dtrain": "library",
        "runtime/dtrain/one": "one",
        "runtime/dtrain/one/short.py": "short",
        "cli/dtrain_cli": "launcher",
    }
    found = house_rules.measured(Tree(KEPT), paths)
    assert found == {"library": 1, "one": 13, "short": 3, "launcher": 2, "all": 19}
    with pytest.raises(ValueError, match=r"runtime/dtrain/two/short\.py belongs to no capability"):
        house_rules.measured(Tree(KEPT), {**{path: "one" for path in paths if path != "runtime/dtrain"}})
    with pytest.raises(ValueError, match="no file is in runtime/dtrain/three"):
        house_rules.measured(Tree(KEPT), {**paths, "runtime/dtrain/three": "three"})
