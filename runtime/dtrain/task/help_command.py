"""`python -m dtrain.task.help_command NAME [COMMAND ...]`: what `dtrain help` says of a public name.

docs/make_reference.py makes the pages of docs/reference/api/ from the same parts.
"""

import inspect
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from enum import EnumType
from functools import cache
from textwrap import dedent, fill
from types import GenericAlias, ModuleType
from typing import Any

import dtrain

WIDTH_MAX = 100
_TITLE = re.compile(r"(Args|Attributes|Returns|Raises):")
_ENTRY = re.compile(r"    \*{0,2}\w+(?:, \*{0,2}\w+)*(?: \([^)]*\))?: |- ")


@cache
def public() -> dict[str, Any]:
    """Return what each public name stands for: `dt`, `dt.layers`, `dt.layers.Dense`, ..."""
    found: dict[str, Any] = {"dt": dtrain}
    places = ["dt"]
    for place in places:
        module = found[place]
        own = [
            key for key, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__
        ]
        names = [name for name in getattr(module, "__all__", own) if not name.startswith("_")]
        for name in sorted(names, key=lambda each: (each.lower(), each)):
            value = found[f"{place}.{name}"] = getattr(module, name)
            if isinstance(value, ModuleType) and all(value is not found[each] for each in places):
                places.append(f"{place}.{name}")
    return found


def doc_of(name: str) -> str:
    """Return the docstring of a public name or of a method; of other objects, the text below."""
    owner, _, own = name.rpartition(".")
    value = public()[name] if name in public() else getattr(public()[owner], own)
    if type(value).__module__[:6] != "dtrain" and not isinstance(value, int | GenericAlias):
        return inspect.getdoc(value) or ""
    modules = [
        each for place, each in sys.modules.items() if place[:7] == "dtrain." and vars(each).get(own) is value
    ]
    text = re.compile(rf'^{own} = [^\n]*\n"""(.*?)"""', re.MULTILINE | re.DOTALL)
    return next((found[1] for each in modules if (found := text.search(inspect.getsource(each)))), "")


def blocks(doc: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the paragraphs of a docstring: a title (`Args`, `code` or none), and its entries or lines."""
    for piece in filter(None, re.split(r"\n\n(?=\S)", inspect.cleandoc(doc))):
        paragraph, _, code = piece.partition("\n\n    ")
        lines = paragraph.split("\n")
        title = _TITLE.fullmatch(lines[0])
        entries: list[str] = []
        for line in lines[1:] if title else lines:
            if entries and not _ENTRY.match(line):
                entries[-1] += f" {line.strip()}"
            else:
                entries.append(line.strip())
        yield title[1] if title else "", entries
        if code:
            yield "code", dedent(f"    {code}").split("\n")


def signature(name: str, value: Any) -> str:
    """Return how a name is called, with its defaults; of what is not called, the name alone."""
    if isinstance(value, EnumType | GenericAlias) or getattr(value, "_is_protocol", not callable(value)):
        return name
    if inspect.isclass(value) and issubclass(value, BaseException):
        return name
    found = inspect.signature(value)
    plain = [each.replace(annotation=each.empty) for each in found.parameters.values() if each.name != "self"]
    text = str(found.replace(parameters=plain, return_annotation=found.empty))
    return name + re.sub(r"<[^=]* at 0x\w+>", "...", text)


def public_base(value: type) -> str:
    """Return the nearest public class that a class is derived from; empty: there is none."""
    names = {id(each): name for name, each in reversed(public().items())}
    return next((names[id(each)] for each in inspect.getmro(value)[1:] if id(each) in names), "")


def within(name: str) -> list[str]:
    """Return what is in a module, or what a class adds to its public base."""
    value = public()[name]
    if isinstance(value, ModuleType):
        return [each for each in public() if each.rpartition(".")[0] == name]
    own = [vars(each) for each in getattr(value, "__mro__", ()) if each.__module__[:6] == "dtrain"]
    methods = {
        key for each in own for key, what in each.items() if key[0] != "_" and hasattr(what, "__get__")
    }
    known = dir(public().get(public_base(value))) if own else ()
    return [f"{name}.{key}" for key in sorted(methods.difference(known)) if doc_of(f"{name}.{key}")]


def sentence(doc: str) -> str:
    """Return the first sentence of a docstring."""
    return re.split(r"(?<=\.)\s+(?=[A-Z`\[])", next(blocks(doc))[1][0])[0] if doc else ""


def help_of(name: str) -> str:
    """Return what the terminal shows of a public name, or of a method of one."""
    owner, _, own = name.rpartition(".")
    value = public()[name] if name in public() else getattr(public()[owner], own)
    lines = [signature(name, value)]
    for title, entries in blocks(doc_of(name)):
        lines += ["", *([f"{title}:"] if title not in ("", "code") else [])]
        lines += [f"    {each}" if title else each for each in entries]
    if inspect.isclass(value) and (base := public_base(value)):
        lines += ["", f"Further arguments and methods are those of {base}."]
    inner = within(name) if name in public() else []
    lines += ["", "In it:"] if inner else []
    lines += [f"    {each.rpartition('.')[2]}: {sentence(doc_of(each))}" for each in inner]
    width = min(shutil.get_terminal_size().columns, WIDTH_MAX)
    deeper = {
        each: len(each) - len(each.lstrip()) + (4 if each[:4] == "    " or each is lines[0] else 0)
        for each in lines
    }
    return "\n".join(
        fill(each, width, subsequent_indent=" " * deeper[each], break_on_hyphens=False) for each in lines
    )


def main(word: str, *commands: str) -> int:
    """Print the help of a name, or the nearest names if it is misspelt."""
    wanted = f".{re.sub(r'^dtrain', 'dt', word)}"
    classes = {name: each for name, each in public().items() if inspect.isclass(each)}
    method = wanted.rpartition(".")[2]
    found = [each for each in public() if f".{each}".endswith(wanted)]
    found = found or [each for each in public() if f".{each}".lower().endswith(wanted.lower())]
    found = found or [
        f"{each}.{method}"
        for each in classes
        if f".{each}.{method}".endswith(wanted) and hasattr(classes[each], method)
    ]
    if found:
        once = {id(public().get(each, each)): each for each in reversed(found)}
        sys.stdout.write("\n\n\n".join(map(help_of, reversed(once.values()))) + "\n")
        return 0
    known = {each.lower(): each for each in (*commands, *(name.rpartition(".")[2] for name in public()))}
    near = get_close_matches(word.rpartition(".")[2].lower(), known, n=1)
    hint = f"do you mean {known[near[0]]}?" if near else "`dtrain help dt` lists the modules."
    sys.stderr.write(f"dtrain help: {word}: no such command and no public name; {hint}\n")
    return 2


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(*sys.argv[1:]))
