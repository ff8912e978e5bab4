"""An error in words, whatever it is: each step that runs the user's code may raise anything."""

import re
import traceback
from pathlib import Path

from dtrain.errors import DtrainError
from dtrain.formats.masked_urls import masked
from dtrain.process.plain_text import plain
from dtrain.runs.failure.frames import LEFT_OUT, choose_frames, users_frames

HINTS = {
    "RuntimeError: can't start new thread": (
        "the system allows no more threads or processes: raise the limit (`ulimit -u`, pids.max of the "
        "group), or start fewer tasks"
    ),
    "BdbQuit": "a task has no terminal for breakpoint(): run the program alone, by `python PROGRAM`",
}
"""Remedies by the first words of an error, where Python names none."""
_MARK = re.compile(rf'  File "{re.escape(LEFT_OUT)}", line (\d+), in .*\n')
_PACKAGE = Path(__file__).parents[2]


def text_of(value: object) -> str:
    """Return `str(value)` as text that can be encoded; where there is none, words that say so."""
    try:
        text = str.__str__(str(value))  # not of a subclass, whose methods may do anything
    except BaseException as refusal:  # SystemExit as well: the program is at its end already
        return f"(its text cannot be had: {type(refusal).__name__})"
    return encodable(text)


def encodable(text: str) -> str:
    """Return the text with control characters, and parts that are no Unicode (a path's bytes that are not
    UTF-8), as escapes, and without the passwords of URLs.
    """
    return masked(plain(text))


def shortened(text: str, limit: int) -> str:
    """Return a text of more than `limit` characters without its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def headline(error: BaseException) -> str:
    """Return ``ValueError: bad batch``, with the remedy where it is known."""
    words = _words(error)
    hint = _hint(error)
    return f"{words}; {hint}" if hint else words


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}".rstrip(": ")


def _hint(error: BaseException) -> str | None:
    words = _words(error)
    return next((hint for begin, hint in HINTS.items() if words.startswith(begin)), None)


def traceback_text(error: BaseException) -> str | None:
    """Return the traceback as Python prints it, without dtrain's frames between those of the program.

    It is None for an error that dtrain raised on purpose and that no line of the program led to.
    """
    on_purpose = isinstance(error, DtrainError)
    try:
        whole = traceback.TracebackException(type(error), error, users_frames(error.__traceback__))
        if hint := _hint(error):
            whole.__notes__ = [*(whole.__notes__ or ()), hint]
        choose_frames(whole, on_purpose)
        if on_purpose and not whole.stack:
            return None
        text = encodable("".join(whole.format()))
    except BaseException:  # the notes, causes or source of a syntax error are of a wrong type
        return None if on_purpose else _plain(error)
    return _MARK.sub(rf"  ... \1 calls inside {re.escape(_PACKAGE.name)} ...\n", text)


def _plain(error: BaseException) -> str:
    """Return the traceback of an error that cannot be formatted, without its causes and notes."""
    try:
        frames = "".join(traceback.format_tb(users_frames(error.__traceback__)))
    except BaseException:
        frames = ""
    return f"Traceback (most recent call last):\n{encodable(frames)}{headline(error)}\n"
