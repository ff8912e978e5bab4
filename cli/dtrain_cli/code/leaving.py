"""The rule for what may leave this machine with a run: secrets and private keys never do.

Every engine asks here. Code lies on hosts and in ConfigMaps, which more people read than a user's own files.
"""

import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from dtrain.config import Problem, RunSpec, SecuritySection
from dtrain.config.security_section import TLS_VARIABLES
from dtrain.errors import SpecError
from dtrain.formats.masked_urls import has_password
from dtrain.formats.regular_file import open_regular, read_regular
from dtrain.process.secret import SHORTEST_CHARACTERS

_NAMES = re.compile(r"(^|/)\.env[^/]*(/|$)|\.(key|pem)$|(^|/)id_[^./]*$", re.IGNORECASE)
_CONTENTS = re.compile(rb"-BEGIN [A-Z0-9 ]*PRIVATE KEY|dtrain1-[0-9a-f]{64}")
_LOOKED_BYTES = 1 << 20
_SHOWN = 5


def may_leave(
    folder: Path, names: Sequence[str], security: SecuritySection, say: Callable[[str], None]
) -> list[str]:
    """Return the files of the code that may be sent, and name the others in one line.

    Left out are the files that `security` names, those that are called as secrets and keys are, and those
    that their owner alone can read and that hold a private key or a secret of dtrain.

    Args:
        folder: below which they lie.
        names: paths from there.
        security: of the spec.
        say: prints a line for the user.
    """
    files = [getattr(security, name) for name in (*TLS_VARIABLES, "secret_file")]
    own = [_pattern(file) for file in files if file]
    held = [name for name in names if _is_secret(folder / name, name, own)]
    if held:
        more = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
        shown = ", ".join(held[:_SHOWN])
        say(f"left out of the code: {shown}{more}: secrets and private keys stay on this machine")
    return [name for name in names if name not in held]


def check_texts(files: Mapping[str, bytes], secrets: Iterable[str]) -> None:
    """Raise a `SpecError` if a file that others will read holds the text of one of the run's secrets."""
    texts = [text.encode() for text in secrets if len(text) >= SHORTEST_CHARACTERS]
    for path, content in files.items():
        if any(text in content for text in texts):
            raise SpecError(
                f"code: {path} holds a secret of the run, and everybody who may read a ConfigMap would see "
                "it; take it out of the file, or leave the file out by code.exclude"
            )


def password_problems(spec: RunSpec, arguments: Sequence[str] = ()) -> Iterator[Problem]:
    """Yield the sections of a spec, and the arguments of its program, that show the password of a URL."""
    for name, value in {**msgspec.to_builtins(spec), "arguments": arguments}.items():
        if has_password(msgspec.json.encode(value).decode()):
            yield (
                (name,),
                (
                    "expected a URL without a password, which everybody who may read the job would see; "
                    "storage takes it from the account of the job, or from variables"
                ),
            )


def keep_from_git(folder: Path, pattern: str) -> None:
    """Add a pattern to the `.gitignore` of a folder, unless it is there; a failure changes nothing."""
    path = folder / ".gitignore"
    with contextlib.suppress(OSError):
        before = read_regular(path, _LOOKED_BYTES, follow=False) if os.path.lexists(path) else b""
        if os.fsencode(pattern) not in before.splitlines():
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(path, flags, 0o644), "ab") as file:
                file.write((b"\n" if before and before[-1:] != b"\n" else b"") + os.fsencode(pattern) + b"\n")


def _pattern(file: str) -> str:
    """Return the pattern of the paths of a file, of which each task may have its own."""
    return re.sub(r"\{\w+\}", "*", glob.escape(os.path.realpath(Path(file).expanduser())))


def _is_secret(path: Path, name: str, own: Sequence[str]) -> bool:
    real = os.path.realpath(path)  # of a link, Kubernetes gets the file that it leads to
    if _NAMES.search(name) or _NAMES.search(Path(real).name) or any(fnmatchcase(real, each) for each in own):
        return True
    try:
        with open(open_regular(path), "rb") as file:
            private = not os.fstat(file.fileno()).st_mode & 0o077
            return private and _CONTENTS.search(file.read(_LOOKED_BYTES)) is not None
    except OSError:  # packing will report the same error
        return False
