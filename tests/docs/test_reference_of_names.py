"""The reference of names is what docs/make_reference.py makes, and says something of every name and argument."""

import importlib.util
import inspect
import operator
import re
import sys
from types import ModuleType

import numpy as np
import pytest
from docs.pages import ROOT

import dtrain as dt
from dtrain import absent_names
from dtrain.config import OuterSection, TrainingSettings
from dtrain.config.plain_data import keys_of
from dtrain.task.help_command import doc_of, public
from dtrain_cli.main import cli

COMMAND = "python docs/make_reference.py"
sys.path.insert(0, str(ROOT / "docs"))  # the generators import each other
spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)


def test_every_page_is_what_the_generator_makes():
    made = reference.pages()
    there = {page.name: page.read_text() for page in reference.PAGES.glob("*.md")}
    old = sorted(name for name in {*made, *there} if made.get(name) != there.get(name))
    assert not old, (
        f"docs/reference/api: run `{COMMAND}`; these pages are not what it makes: {', '.join(old)}"
    )


def test_the_pages_of_commands_and_keys_are_what_the_generator_makes():
    made = reference.make_settings_reference.pages()
    folder = reference.make_settings_reference.REFERENCE
    old = sorted(name for name, text in made.items() if (folder / name).read_text() != text)
    assert not old, f"docs/reference: run `{COMMAND}`; these pages are not what it makes: {', '.join(old)}"
    keys = {*keys_of(TrainingSettings)} - {"outer"} | {f"outer.{key}" for key in keys_of(OuterSection)}
    assert made["spec_keys.md"].count("\n| `training.") == len(keys)
    assert all(f"\n## dtrain {command}\n" in made["command_line.md"] for command in cli.commands)


def test_every_module_that_is_public_has_a_page_and_every_name_a_heading():
    for module in (
        "",
        "layers",
        "losses",
        "metrics",
        "optimizers",
        "optimizers.schedules",
        "callbacks",
        "data",
    ):
        assert (reference.PAGES / f"{module or 'dtrain'}.md").exists()
    for name in dt.layers.__all__:
        assert re.search(rf"^## {name}( \(function\))?$", reference.pages()["layers.md"], re.MULTILINE), name


def test_every_public_name_has_a_docstring_of_its_own():
    bare = [name for name in public() if not doc_of(name).strip()]
    assert not bare, "these public names have no docstring"
    inherited = [
        name
        for name, value in public().items()
        if inspect.isclass(value) and value.__module__.startswith("dtrain") and not vars(value).get("__doc__")
    ]
    assert not inherited, "these public classes have the docstring of another class"


def test_every_method_of_a_public_class_has_a_docstring_of_its_own_or_of_a_base():
    silent = [
        f"{name}.{key}"
        for name, value in public().items()
        for key in dir(value)
        if inspect.isclass(value) and key[0] != "_" and is_method_of_dtrain(value, key)
        if not inspect.getdoc(getattr(value, key))
    ]
    assert not silent, "these methods of public classes have no docstring"


def is_method_of_dtrain(value: type, key: str) -> bool:
    """Whether a name of a class is a method or a property, and dtrain has written it."""
    owner, what = next((each, vars(each)[key]) for each in value.__mro__ if key in vars(each))
    if key in getattr(value, "__dataclass_fields__", ()):
        return False
    return owner.__module__.startswith("dtrain") and inspect.isroutine(getattr(what, "fget", what))


def test_every_argument_of_a_public_class_or_function_has_a_description():
    silent = []
    for name, value in public().items():
        if isinstance(value, ModuleType) or not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if value.__module__ == "numpy":  # its types of elements
            continue
        told = reference.arguments(value)
        for argument in reference.parameters(value):
            written = inspect.isfunction(value) and re.search(rf"[`*]{argument}\b", doc_of(name))
            if argument not in told and not written:
                silent.append(f"{name}({argument})")
    assert not silent, "the docstrings say nothing of these arguments"


def test_what_is_said_of_an_absent_name_is_what_its_page_says():
    """The message of the error, and the row of the table."""
    asked = 0
    for module, names in reference.keras_names().items():
        owner = public()[module]
        if not hasattr(owner, "__getattr__"):
            continue
        page = reference.pages()[reference.page_of(module)]
        for name in names:
            if hasattr(owner, name):  # that includes private packages of dtrain's that are loaded
                continue
            with pytest.raises(AttributeError) as raised:
                getattr(owner, name)
            use = str(raised.value).partition("; ")[2]
            row = f"| `{name}` | {reference.cell(use)} |"
            assert row in page if use else f"`{name}`" in page
            asked += 1
    assert asked > 400


def test_every_name_that_stands_for_an_absent_one_exists():
    text = (ROOT / "runtime" / "dtrain" / "absent_names.txt").read_text()
    for name in set(re.findall(r"\bdt\.[\w.]*\w", text)):
        owner = dt
        for part in name.split(".")[1:]:
            owner = getattr(owner, part)


def test_every_name_of_numpy_that_is_told_of_exists():
    """In the oldest numpy that is allowed, too: the newest has names that 1.26 does not have."""
    text = (ROOT / "runtime" / "dtrain" / "absent_names.txt").read_text()
    names = re.findall(r"^dtrain (.*): numpy has it: np\.\{name\}$", text, re.MULTILINE)[0].split()
    told = {name.removeprefix("reduce_") for name in names} | set(re.findall(r"\bnp\.([\w.]*\w)", text))
    for name in told:
        operator.attrgetter(name)(np)
    assert not told & {"acos", "asin", "atan", "bool", "concat", "pow", "strings", "unstack"}


def test_every_absent_name_of_the_table_is_absent():
    for place, name in absent_names.instead():
        module = {"*": "dt", "dtrain": "dt"}.get(place, f"dt.{place}")
        if place not in ("*", "arguments"):
            assert not reference.there(public()[module], name), f"{module}.{name} is there"


def test_an_argument_of_keras_that_is_absent_is_named():
    page = reference.pages()["layers.md"]
    lstm = page.partition("\n## LSTM\n")[2].partition("\n## ")[0]
    assert "`stateful`" in lstm.partition("Arguments of Keras that are absent: ")[2]
    assert "- `return_sequences`: " in lstm
