"""Packets between tasks of one host: what is none is refused, and descriptors travel with them."""

import fcntl
import os
import socket
import struct

import pytest
from wire.two_ends import LARGE, PULL, PUSH, SERVER, WORKER, Echo, announce

from dtrain.errors import PeerRefusedError
from dtrain.wire.channel import Answer
from dtrain.wire.frames import Limits, PassedDescriptor
from dtrain.wire.one_host import shared_memory
from dtrain.wire.one_host.local import LocalChannel, LocalService
from dtrain.wire.one_host.packets import _head
from dtrain.wire.one_host.shared_memory import SharedMemory


def test_memory_that_its_maker_has_not_taken_is_refused_before_it_is_mapped(pair):
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.truncate(fd, 1 << 40)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    announce(pair[0], 1, fd)
    os.close(fd)
    with pytest.raises(PeerRefusedError, match="has holes"):
        pair[1].receive(Limits(LARGE, LARGE))


def test_memory_that_may_shrink_is_refused(pair):
    fd = os.memfd_create("hostile")
    os.truncate(fd, LARGE)
    announce(pair[0], 1, fd)
    os.close(fd)
    with pytest.raises(PeerRefusedError, match="may shrink"):
        pair[1].receive(Limits(LARGE, LARGE))


@pytest.mark.parametrize(
    ("packet", "said"),
    [
        (b"\xff\xff\xff\xff\x01\x00\x00\x00", "did not come"),
        (b"\xff", "does not know"),
        (b"\x08\x00\x00\x00nonsense", "does not know"),
        (b"\xff\xff\xff\x7f" + bytes(100), "does not know"),
    ],
)
def test_bytes_that_are_no_packet_are_refused(pair, packet, said):
    pair[0].send(packet)
    pair[0].send(b"\0")
    with pytest.raises(PeerRefusedError, match=said):
        pair[1].receive(Limits(LARGE, LARGE))


@pytest.mark.parametrize("announced", [1, 0x8000_0001])
def test_a_peer_that_ends_after_an_announcement_is_lost_and_not_refused(pair, announced):
    """The sender may be killed between the two packets; it was no stranger."""
    pair[0].send(struct.pack("<II", 0xFFFF_FFFF, announced))
    pair[0].close()
    with pytest.raises(ConnectionResetError, match="ended within a message"):
        pair[1].receive(Limits(LARGE, LARGE))


@pytest.mark.parametrize("place", [(1, [LARGE]), (1, [-8]), (1, [2**63]), (1, []), (2, [0])])
def test_blocks_that_lie_nowhere_are_refused(pair, place):
    memory = SharedMemory.make(LARGE)
    announce(pair[0], 1, memory.fd)
    pair[0].send(_head(PUSH, [("uint8", 100_000)], place))
    with pytest.raises(PeerRefusedError, match="does not know"):
        pair[1].receive(Limits(LARGE, LARGE))


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a file"])
def test_a_descriptor_of_something_else_is_its_sender_s_fault_and_no_shortage(pair, kind, tmp_path):
    sender, packets = pair
    (tmp_path / "file").write_bytes(bytes(100))
    descriptors = {
        "a pipe": os.pipe,
        "a device": lambda: (os.open(os.devnull, os.O_RDONLY),),
        "a file": lambda: (os.open(tmp_path / "file", os.O_RDONLY),),
    }[kind]()
    sender.send(struct.pack("<II", 0xFFFF_FFFF, 1))
    socket.send_fds(sender, [b"\0"], descriptors[:1])
    with pytest.raises(PeerRefusedError, match="may shrink"):
        packets.receive(Limits(1 << 20, 1 << 20))
    assert shared_memory.shortage is None
    for descriptor in descriptors:
        os.close(descriptor)


class Lends(Echo):
    """Answers a question with the reading end of a pipe, and writes into the end that it was passed."""

    def received(self, caller, frame):
        for passed in frame.passed:
            with open(passed.detach(), "wb") as end:
                end.write(b"from the server")
        reading, writing = os.pipe()
        os.write(writing, b"to be read")
        os.close(writing)
        caller.pass_on(frame.message, [reading])
        os.close(reading)
        return Answer.ONE


def test_file_descriptors_travel_with_a_message_in_both_directions():
    service = LocalService(Lends(), SERVER)
    channel = LocalChannel("ps:0", service.name(), WORKER)
    reading, writing = os.pipe()
    try:
        channel.pass_on(PULL, [writing])
        os.close(writing)
        frame = channel.receive()
        assert frame.message == PULL
        (passed,) = frame.passed
        with open(passed.detach(), "rb") as mine, open(reading, "rb") as given:
            assert (mine.read(), given.read()) == (b"to be read", b"from the server")
    finally:
        channel.close()
        service.stop()


def test_a_descriptor_that_nobody_takes_is_closed():
    reading, writing = os.pipe()
    passed = PassedDescriptor(reading)
    del passed
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"nobody reads it")
    os.close(writing)
