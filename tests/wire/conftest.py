"""Fixtures of packets."""

import socket

import pytest

from dtrain.wire.one_host.packets import PacketSocket


@pytest.fixture
def pair():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends[0], PacketSocket(ends[1])
    for end in ends:
        end.close()
