"""Exit codes of programs that end by an exception."""

from dtrain.errors import DtrainError

SIGNALS = {130: "interrupted (SIGINT)", 143: "asked to stop (SIGTERM)"}


def exit_code(error: BaseException) -> int:
    """Return the exit code of `python PROGRAM` after `error`; a `DtrainError` knows its own code.

    The system keeps 8 bits of an exit code, so that ``sys.exit(256)`` would end as success. Here it is a
    failure.
    """
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return _kept(error.code) or int(error.code != 0) if isinstance(error.code, int) else 1
    code = error.exit_code if isinstance(error, DtrainError) else 1
    return (_kept(code) if isinstance(code, int) else 0) or 1  # a subclass of the user's may say anything


def exit_text(code: int) -> str:
    """Return the words for an exit code that a program has asked for."""
    if code != 0 and _kept(code) == 0:
        return (
            f"exited with code {_short(code)}, of which the system would keep 0: it counts as a failure, "
            "exit code 1"
        )
    return f"exited with code {_kept(code)}"


def _kept(code: int) -> int:
    return code & 0xFF


def _short(code: int) -> str:
    return str(code) if abs(code) < 1 << 64 else hex(code)[:20] + "..."
