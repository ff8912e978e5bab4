"""The part of a task's account that says whom it waits for and how far it has come; see `runs.reporting`."""


class Account:
    """Receives the waits and the progress of a process, and records nothing. A `Reporter` records them."""

    def waiting(self, for_whom: object) -> None:
        """Take note of the task that is waited for from now on, which `str` names; None: none."""

    def progress(self, step: int) -> None:
        """Take note of a completed step."""
