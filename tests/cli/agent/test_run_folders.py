"""The places of an agent on its host."""

import errno
import os

import pytest

from dtrain_cli.agent.run_folders import no_room


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_before_a_task_starts(tmp_path, monkeypatch, number):
    assert no_room(tmp_path) is None

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert no_room(tmp_path) == f"{os.strerror(number)} in {tmp_path}; make room there"
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_reserve_room_is_not_taken_for_full(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert no_room(tmp_path) is None
