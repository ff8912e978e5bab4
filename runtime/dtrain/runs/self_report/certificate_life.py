"""The warnings that a task's certificate will end: one a day, from four fifths of its life on."""

import math
import time

WARNED_FROM = 0.8
DAY_S = 86400.0


class CertificateLife:
    """Decides when to warn. One thread calls it."""

    def __init__(self) -> None:
        self._warned_s = -math.inf

    def look(self, begins_s: float, ends_s: float, now_s: float) -> str | None:
        """Return the warning that is due.

        Args:
            begins_s: the certificate's first moment, in seconds since 1970.
            ends_s: its last one.
            now_s: the present one.
        """
        if now_s < begins_s + WARNED_FROM * (ends_s - begins_s) or now_s - self._warned_s < DAY_S:
            return None
        self._warned_s = now_s
        remedy = "replace its files, which new connections read"
        if now_s >= ends_s:
            return f"this task's certificate has expired, and no new connection can be made: {remedy}"
        left = f"{(ends_s - now_s) / DAY_S:.1f} days"
        return f"this task's certificate ends in {left}, on {time_text(ends_s)}: {remedy}"


def time_text(time_s: float) -> str:
    """Return a time in seconds since 1970 as ISO 8601 writes it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
