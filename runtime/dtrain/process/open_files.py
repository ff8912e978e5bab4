"""The number of files that this process may have open: a port, a pipe and a connection are one each.

The soft limit is low for programs that call select(). It is raised up to the hard limit where that is needed.
"""

import resource

from dtrain.errors import RunError


def allow_open_files(needed: int | None = None) -> None:
    """Raise the soft limit to `needed`, or a `RunError` if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed is None:
        needed = hard
    elif hard != resource.RLIM_INFINITY and hard < needed:
        raise RunError(
            f"this cluster needs {needed} open files, and {hard} are allowed (`ulimit -Hn`); raise that, or "
            "start fewer tasks"
        )
    if soft != resource.RLIM_INFINITY and (needed == resource.RLIM_INFINITY or soft < needed):
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
