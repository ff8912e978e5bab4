"""The words of `scontrol show job -o` and `scontrol show node -o`, and their meaning for a run. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/_]*)=(\S*)")
_CODE = re.compile(r"(\d{1,3}):(\d{1,3})")
WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
GOING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
_TERMINATED = 143
_FAILED = 1


@dataclass(frozen=True)
class JobReport:
    """A job as Slurm knows it.

    Attributes:
        state: Slurm's word for it, such as RUNNING.
        reason: why it waits.
        code: the exit code of its script, 128+n for signal n.
        ends: when its time limit is over, by the clock of Slurm; None: it has not begun, or has no limit.
        restarts: how often it was requeued.
    """

    state: str
    reason: str
    code: int
    ends: datetime | None
    restarts: int

    @property
    def over(self) -> bool:
        """Return whether the job has ended and does not begin again."""
        return self.state not in WAITING | GOING

    @property
    def exit_code(self) -> int:
        """Return the exit code of the run of a job that is over."""
        if self.state == "COMPLETED" or self.code:
            return self.code
        return _TERMINATED if self.state in ("CANCELLED", "TIMEOUT", "PREEMPTED", "DEADLINE") else _FAILED

    def is_ending(self, now: datetime, grace_s: float) -> bool:
        """Return whether a running job has no more time than its grace: TERM was then a notice of that.

        A job that was cancelled is completing, or gone.
        """
        if self.state != "RUNNING" or self.ends is None:
            return False
        return (self.ends - now).total_seconds() <= grace_s


def read_job(text: str) -> JobReport | None:
    """Return what one line of `scontrol show job -o` says; None if it is about no job."""
    fields = dict(_FIELD.findall(text))
    if "JobState" not in fields:
        return None
    code = _CODE.fullmatch(fields.get("ExitCode", ""))
    exit_code = 0 if code is None else int(code[1]) or (128 + int(code[2]) if int(code[2]) else 0)
    restarts = fields.get("Restarts", "")
    return JobReport(
        state=fields["JobState"],
        reason=fields.get("Reason", "None"),
        code=exit_code,
        ends=_moment(fields.get("EndTime", "")),
        restarts=int(restarts) if restarts.isdecimal() and len(restarts) < 10 else 0,
    )


def read_node_addresses(text: str) -> dict[str, str]:
    """Return NodeAddr of each node, from lines of `scontrol show node -o`."""
    addresses = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "NodeName" in fields and fields.get("NodeAddr"):
            addresses[fields["NodeName"]] = fields["NodeAddr"]
    return addresses


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:  # "Unknown", "NONE", "n/a"
        return None
