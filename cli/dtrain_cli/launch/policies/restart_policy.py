"""Whether a task that ended is started again, and when. Pure: the clock is an argument.

A death by signal, or an exit code of 128 and more, may be chance; an exit code from 1 to 127 is the program's
own word and stays (Kubernetes' ExitCode rule), and so does 255, which ``sys.exit(-1)`` gives. The backoff
doubles with every restart, and both are forgotten after a healthy minute.
"""

from dataclasses import dataclass

from dtrain.config import RestartSection
from dtrain.config.choices import RestartPolicy

HEALTHY_S = 60.0
SIGNALLED = 128
MINUS_ONE = 255
PERMANENT_ERRORS = (
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
    "SpecError",
    "ProgramError",
)
"""Failures that the next attempt would repeat, whatever the policy says."""


def may_be_chance(status: int) -> bool:
    """Return whether an end is a death by signal, or is reported as one. Another attempt may then succeed."""
    return status < 0 or SIGNALLED <= status < MINUS_ONE


@dataclass(frozen=True)
class Restart:
    """Start it again at `at_s`; `count` restarts will then have been used up."""

    at_s: float
    count: int


def decide(
    rule: RestartSection, status: int, count: int, ran_s: float, now_s: float, error_type: str | None = None
) -> Restart | None:
    """Return the restart that follows the end of an attempt; None: the task has ended for good.

    Args:
        rule: the role's restart rule.
        status: of the attempt; negative for a signal.
        count: restarts used up so far.
        ran_s: how long the attempt ran.
        now_s: the monotonic clock.
        error_type: the class of the exception that ended the attempt; None: none did.
    """
    if error_type in PERMANENT_ERRORS:
        return None
    if rule.policy == RestartPolicy.NEVER:
        return None
    if rule.policy == RestartPolicy.ON_FAILURE and not may_be_chance(status):
        return None
    used = 0 if ran_s >= HEALTHY_S else count
    if used >= rule.max:
        return None
    return Restart(at_s=now_s + rule.backoff_s * 2**used, count=used + 1)
