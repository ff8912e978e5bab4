"""The part of a task's account that says whom it waits for and how far it has come; see `runs.reporting`."""

from typing import Protocol


class Account(Protocol):
    """The listener to waits and progress; a `Reporter` is one."""

    def waiting(self, for_whom: str | None) -> None:
        """Take note of the task that is waited for from now on; None: none."""

    def progress(self, step: int) -> None:
        """Take note of a completed step."""


class NoAccount(Account):
    """The account of a process that no one watches."""

    def waiting(self, for_whom: str | None) -> None:
        """See `Account.waiting`."""

    def progress(self, step: int) -> None:
        """See `Account.progress`."""


NO_ACCOUNT = NoAccount()
