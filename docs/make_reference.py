"""Makes docs/reference/api/, a page for each public module of dtrain, from `__all__` and docstrings; beside
it the pages of commands and of the keys of a spec.

    python docs/make_reference.py

The pages are plain Markdown, which Sphinx with MyST takes as it is. keras_names.txt has the names and
arguments of TensorFlow 2.15 and Keras 2.15, from which the pages say what is absent and what differs.
"""

import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import make_settings_reference

from dtrain.absent_names import hint
from dtrain.task.help_command import blocks, doc_of, public, public_base, sentence, signature, within

REFERENCE = Path(__file__).parent / "reference"
PAGES = REFERENCE / "api"
WIDE = 88
KERAS = (
    "layers",
    "losses",
    "metrics",
    "optimizers",
    "callbacks",
    "initializers",
    "regularizers",
    "constraints",
    "activations",
)
KERAS += ("utils", "models")
IN_KERAS = "tf.keras."
MADE = "*Made by `python docs/make_reference.py` from the docstrings; do not edit this page.*"
COMMON = {"name", "dtype", "kwargs", "args"}
"""Arguments that nearly everything in Keras has, and about which a page says nothing."""


@cache
def keras_names() -> dict[str, dict[str, list[str]]]:
    """Return the names of TensorFlow and Keras with their arguments, by the module of dtrain for them."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in (REFERENCE / "keras_names.txt").read_text().splitlines():
        if not line.startswith("#"):
            module, name, *arguments = line.split()
            found.setdefault("dt" if module == "dtrain" else f"dt.{module}", {})[name] = arguments
    return found


def modules() -> list[str]:
    """Return the public modules, each once, `dt` first."""
    once: dict[int, str] = {}
    for name, value in public().items():
        if isinstance(value, ModuleType):
            once.setdefault(id(value), name)
    return list(once.values())


def page_of(module: str) -> str:
    """Return the file's name of a module's page."""
    return f"{module.replace('dt.', '', 1) if module != 'dt' else 'dtrain'}.md"


def arguments(value: Any) -> dict[str, str]:
    """Return what docstrings say of arguments, by name: of a class also its public bases'."""
    found: dict[str, str] = {}
    owners = list(inspect.getmro(value)[:-1]) if inspect.isclass(value) else [value]
    for owner in owners:
        constructor = vars(owner).get("__init__") if inspect.isclass(owner) else None
        if owner is value or any(owner is each for each in public().values()):
            for doc in (owner.__doc__, getattr(constructor, "__doc__", None)):
                for title, entries in blocks(doc or ""):
                    for entry in entries if title in ("Args", "Attributes") else ():
                        names, _, text = entry.partition(": ")
                        for name in re.findall(r"\w+", names.split(" (")[0]):
                            found.setdefault(name, text)
    return found


def parameters(value: Any) -> list[str]:
    """Return the names of what a class or function is called with; of what is not called, none."""
    if signature("", value) == "":
        return []
    return [name for name in inspect.signature(value).parameters if name != "self"]


def differences(module: str, name: str, value: Any) -> str:
    """Return which arguments of Keras's class or function are absent here, and which are new."""
    theirs = keras_names().get(module, {}).get(name)
    if not theirs or not parameters(value):
        return ""
    ours = parameters(value)
    absent = [each for each in theirs if each not in ours and each not in COMMON and "kwargs" not in ours]
    return f"Arguments of Keras that are absent: {listed(absent)}." if absent else ""


def listed(names: list[str]) -> str:
    """Return names as code, with commas between."""
    return ", ".join(f"`{each}`" for each in names)


def markdown(text: str) -> str:
    """Return a docstring's text as Markdown: one kind of code marks, no accidental HTML or links."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text)
    for i, part in enumerate(parts):
        if part.startswith("`"):
            parts[i] = f"`{part.strip('`')}`"
        else:
            parts[i] = re.sub(r"([<>*_|\[\]])", r"\\\1", part)
    return "".join(parts)


def cell(text: str) -> str:
    """Return a docstring's text as Markdown within a table, where a bar ends a cell, in code too."""
    return re.sub(r"(?<!\\)\|", r"\|", markdown(text))


def docstring(doc: str) -> list[str]:
    """Return a docstring's paragraphs as Markdown."""
    lines: list[str] = []
    for title, entries in blocks(doc):
        if title == "code":
            lines += ["", "```text", *entries, "```"]
        elif title:
            lines += ["", f"{ {'Args': 'Arguments', 'Raises': 'Errors'}.get(title, title) }:", ""]
            for entry in entries:
                names, colon, text = entry.partition(": ")
                lines.append(f"- `{names}`: {markdown(text)}" if colon else f"- {markdown(entry)}")
        else:
            for entry in entries:
                item = entry.startswith("- ")
                lines += [*([] if item and lines and lines[-1].startswith("- ") else [""])]
                lines.append(f"- {markdown(entry[2:])}" if item else markdown(entry))
    return lines


def call(name: str, value: Any) -> list[str]:
    """Return a signature as a block of code, an argument a line where it is long."""
    text = signature(name, value)
    if len(text) > WIDE:
        inner, depth, quoted, rows = text[len(name) + 1 : -1], 0, False, [""]
        for letter in inner:
            quoted ^= letter == "'"
            depth += (letter in "([{") - (letter in ")]}")
            if letter == "," and depth == 0 and not quoted:
                rows.append("")
            else:
                rows[-1] += letter
        text = f"{name}(\n" + "".join(f"    {row.strip()},\n" for row in rows) + ")"
    return ["", "```text", text, "```"]


def heading(name: str) -> str:
    """Return the heading of a name, which no other heading of the page has in other letters."""
    own = name.rpartition(".")[2]
    twice = own[0].islower() and sum(each.lower() == name.lower() for each in public()) > 1
    return f"{own} (function)" if twice else own


def entry(module: str, full: str) -> list[str]:
    """Return the part of a page about one name."""
    value = public()[full]
    name = full.rpartition(".")[2]
    lines = ["", f"## {heading(full)}", *call(full, value), *docstring(doc_of(full))]
    if inspect.isclass(value) and (base := public_base(value)):
        own = arguments(value)
        mine = {
            each
            for title, found in blocks(value.__doc__ or "")
            if title in ("Args", "Attributes")
            for each in found
        }
        rest = [
            each
            for each in parameters(value)
            if each in own and not any(re.match(rf"\W*([\w, ]+, )?{each}\b", one) for one in mine)
        ]
        lines += [
            "",
            f"Further arguments are those of `{base}`: {listed(rest)}." if rest else f"It is a `{base}`.",
        ]
    if differs := differences(module, name, value):
        lines += ["", differs]
    top = module.split(".")[1] if "." in module else ""
    if top in KERAS and name in keras_names().get(module, {}):
        lines += ["", f"Compare `{IN_KERAS}{module.removeprefix('dt.')}.{name}`."]
    if inspect.isclass(value) and (methods := within(full)):
        lines += ["", "| method or attribute | what it does |", "|---|---|"]
        lines += [f"| `{each.rpartition('.')[2]}` | {cell(sentence(doc_of(each)))} |" for each in methods]
    return lines


def there(module: ModuleType, name: str) -> bool:
    """Return whether a module has a name; a private package of dtrain that happens to be loaded is none."""
    return not isinstance(getattr(module, name, module), ModuleType)


def absent(module: str) -> list[str]:
    """Return the part of a page about names of TensorFlow that a module does not have."""
    own = public()[module]
    known = getattr(own, "__all__", dir(own))
    full = "dtrain" if module == "dt" else f"dtrain.{module.removeprefix('dt.')}"
    gone = [each for each in keras_names().get(module, {}) if each not in known and not there(own, each)]
    told = {each: hint(full, each, known).removeprefix("; ") for each in gone}
    if not gone:
        return []
    title = "TensorFlow 2.15" if module.split(".")[-1] not in KERAS else "Keras 2.15"
    lines = ["", f"## Absent names of {title}"]
    if hasattr(own, "__getattr__"):
        lines += ["", "Asking for one of these raises an AttributeError that says the same."]
    if rows := [f"| `{each}` | {cell(text)} |" for each, text in told.items() if text]:
        lines += ["", "| name | what to use |", "|---|---|", *rows]
    if rest := [each for each, text in told.items() if not text]:
        lines += ["", f"Nothing takes the place of: {listed(rest)}."]
    return lines


def page(module: str) -> str:
    """Return the page of a public module."""
    names = within(module)
    inner = [each for each in names if isinstance(public()[each], ModuleType)]
    lines = [f"# {module}", *docstring(doc_of(module)), "", "| name | what it is |", "|---|---|"]
    for each in names:
        first = cell(sentence(doc_of(each)))
        own = next((one for one in modules() if public()[one] is public()[each]), "")
        target = (
            page_of(own)
            if each in inner
            else "#" + heading(each).lower().translate({32: "-", 40: None, 41: None})
        )
        lines.append(f"| [{each.rpartition('.')[2]}]({target}) | {first} |")
    for each in names:
        if each not in inner:
            lines += entry(module, each)
    lines += absent(module)
    return "\n".join([*lines, "", MADE, ""])


def index() -> str:
    """Return the page that lists the modules."""
    lines = [
        "# Every public name",
        "",
        "`import dtrain as dt`. In a terminal `dtrain help NAME` shows the same of one name.",
        "",
    ]
    lines += ["| module | what is in it |", "|---|---|"]
    lines += [f"| [{each}]({page_of(each)}) | {cell(sentence(doc_of(each)))} |" for each in modules()]
    return "\n".join([*lines, "", MADE, ""])


@cache
def pages() -> dict[str, str]:
    """Return every page by its file's name."""
    return {"README.md": index(), **{page_of(module): page(module) for module in modules()}}


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (PAGES / name).write_text(text)
    make_settings_reference.write()
