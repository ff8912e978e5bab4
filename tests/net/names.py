"""Public names as text: signatures, what classes have, the values of constants; one a line, a file for each module.

What is inherited from a public class as it is there stands there alone. Annotations bear the names of classes and
not those of modules, which are private.
"""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from enum import EnumType
from importlib.metadata import distribution
from pathlib import Path
from types import GenericAlias, ModuleType
from typing import Any, Unpack, get_args, get_origin, get_type_hints

from dtrain.task.help_command import public, public_base

ROOT = Path(__file__).parents[2]


def pages(folder: Path) -> dict[str, str]:
    """Return a page for each public module, and one of what installing dtrain brings."""
    lines: dict[str, list[str]] = {}
    first: dict[int, str] = {}
    for name, value in public().items():
        module = name.rpartition(".")[0] or name
        same = first.setdefault(id(value), name) if not isinstance(value, int | str) else name
        told = [f"{name} = {same}"] if same != name else list(_told(name, value))
        lines.setdefault(module, []).extend(told)
        if isinstance(value, ModuleType) and same == name:
            lines.setdefault(name, []).append(f"__all__ = {' '.join(sorted(getattr(value, '__all__', [])))}")
    scripts = [f"{each.group}: {each.name} = {each.value}" for each in distribution("dtrain").entry_points]
    lines["installed"] = [*scripts, f"dtrain.__version__: {type(sys.modules['dtrain'].__version__).__name__}"]
    return {
        f"names/{module}.txt": "".join(f"{each}\n" for each in sorted(found))
        for module, found in lines.items()
    }


def _told(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield f"{name}: module"
    elif isinstance(value, EnumType):
        yield f"{name}: enum {', '.join(f'{key}={each.value!r}' for key, each in value.__members__.items())}"
    elif inspect.isclass(value) and not isinstance(value, GenericAlias):
        base = public().get(public_base(value))
        builtin = next(each.__name__ for each in value.__mro__ if each.__module__[:6] != "dtrain")
        above = public_base(value) or ("" if builtin in ("object", "Protocol", "Generic") else builtin)
        yield f"{name}: class{f' of {above}' if above else ''}"
        yield f"{name}{_signature(value)}"
        inherited = _members(base) if base else {}
        for member, text in _members(value).items():
            if inherited.get(member) != text:
                yield f"{name}.{member}{text}"
        yield from (f"{name}.{each}: gone" for each in inherited.keys() - _members(value).keys())
    elif callable(value) and not isinstance(value, GenericAlias):
        yield f"{name}{_signature(value)}"
    else:
        yield f"{name} = {_plain(repr(value))}"


@functools.cache
def _members(owner: type) -> dict[str, str]:
    """Return what an object of a class has beside what every object has: by name the signature or value."""
    found = {}
    for part in reversed([each for each in owner.__mro__ if each.__module__[:6] == "dtrain"]):
        for name, kind in vars(part).get("__annotations__", {}).items():
            found[name] = f": {_annotation(kind)}"
        found.update(dict.fromkeys(_assigned(part) - found.keys(), ": attribute"))
        for name in vars(part):
            found[name] = _member(inspect.getattr_static(owner, name))
    return {
        name: text
        for name, text in found.items()
        if not name.startswith("_") or name in ("__call__", "__iter__")
    }


def _member(value: Any) -> str:
    if isinstance(value, property | functools.cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        settable = ", settable" if isinstance(value, property) and value.fset else ""
        return f": property -> {_annotation(inspect.signature(getter).return_annotation)}{settable}"
    if isinstance(value, staticmethod | classmethod):
        return f"{_signature(value.__func__)} {type(value).__name__}"
    if inspect.isroutine(value):
        return _signature(value)
    if inspect.isclass(value) or hasattr(value, "__get__"):
        return f": {type(value).__name__}"
    return f" = {_plain(repr(value))}"


@functools.cache
def _assigned(part: type) -> set[str]:
    """Return the attributes that the methods of a class itself assign."""
    return {
        node.attr
        for node in ast.walk(
            _classes(sys.modules[part.__module__].__file__).get(part.__qualname__, ast.Module([], []))
        )
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


@functools.cache
def _classes(source: str) -> dict[str, ast.AST]:
    """Return the classes of a file by name."""
    body = ast.parse(Path(source).read_text()).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


def _signature(value: Any) -> str:
    try:
        found = inspect.signature(value)
    except (ValueError, TypeError):
        return "(...)"
    told = []
    for each in found.parameters.values():
        kind = "" if each.annotation is each.empty else f": {_annotation(each.annotation)}"
        default = "" if each.default is each.empty else f" = {_plain(repr(each.default))}"
        told.append(str(each.replace(annotation=each.empty, default=each.empty)) + kind + default)
        if each.kind is each.POSITIONAL_ONLY:
            told[-1] += " [by position]"
        elif each.kind is each.KEYWORD_ONLY:
            told[-1] += " [by name]"
    end = "" if found.return_annotation is found.empty else f" -> {_annotation(found.return_annotation)}"
    return f"({', '.join(told)}){end}"


def _annotation(kind: Any) -> str:
    if get_origin(kind) is Unpack:
        keys = sorted(get_type_hints(get_args(kind)[0]).items())
        return f"{{{', '.join(f'{key}: {_annotation(each)}' for key, each in keys)}}}"
    text = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    text = re.sub(r"ndarray\[(?:[^][]|\[(?:[^][]|\[[^][]*\])*\])*\]", "ndarray", text)  # as each numpy has it
    return _plain(re.sub(r"[a-z_]\w*\.(?=[\w.]*\w)", "", re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)))


def _plain(text: str) -> str:
    """Drop what differs between two processes: addresses of objects, and modules before them."""
    text = re.sub(r"<(\w+\.\w+): [^<>]*>", r"\1", text)  # of an enum
    return re.sub(
        r"<(?:function |class '|bound method )?(?:\w+\.)*([\w<>]+)(?: object)?(?: at 0x\w+|')>", r"<\1>", text
    )
