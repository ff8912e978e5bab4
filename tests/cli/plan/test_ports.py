"""Ports: exclusive while held, shareable with the task's own server, never given to two launches."""

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from dtrain.cluster import Role
from dtrain.config import ClusterSection
from dtrain.errors import SpecError
from dtrain_cli.plan.ports import LOOPBACK, HeldPorts, hold_addresses, pick_master_port, pick_port

HOLD_PORTS = (
    "from dtrain.config import ClusterSection\nfrom dtrain_cli.plan.ports import hold_addresses\n"
    "def hold_ports(count): return hold_addresses(ClusterSection(ps=count))[1]\n"
)


def hold_ports(count: int) -> HeldPorts:
    return hold_addresses(ClusterSection(ps=count))[1]


def bind(port: int, reuse_port: bool = False, listen: bool = False) -> socket.socket:
    server = socket.socket()
    if reuse_port:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        server.bind((LOOPBACK, port))
    except OSError:
        server.close()
        raise
    if listen:
        server.listen()
    return server


def test_a_held_port_refuses_a_stranger_and_accepts_the_tasks_own_server_twice():
    with hold_ports(1) as held:
        (port,) = held.ports
        with pytest.raises(OSError, match="in use"):
            bind(port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port))
        for _ in range(2):
            with bind(port, reuse_port=True, listen=True), socket.create_connection((LOOPBACK, port)):
                pass


def test_a_default_grpc_server_can_take_the_port_and_an_exclusive_one_cannot():
    with hold_ports(1) as held:
        address = f"{LOOPBACK}:{held.ports[0]}"
        for share, taken in ((1, True), (0, False)):
            server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", share)])
            if taken:
                assert server.add_insecure_port(address) == held.ports[0]
            else:
                with pytest.raises(RuntimeError):
                    server.add_insecure_port(address)
            server.stop(None).wait()


def leave_connections_that_have_just_ended(port: int) -> None:
    """As a server does that has ended with clients: for a minute the kernel remembers (TIME_WAIT)."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC's servers have it
        server.bind((LOOPBACK, port))
        server.listen()
        with socket.create_connection((LOOPBACK, port)) as client:
            server.accept()[0].close()
            client.recv(1)


def test_a_port_whose_last_server_has_just_ended_can_be_held_and_still_by_one_alone():
    port = pick_port()
    leave_connections_that_have_just_ended(port)
    with pytest.raises(OSError, match="in use"):
        bind(port)
    section = ClusterSection(ps=[f"{LOOPBACK}:{port}"])
    _, held = hold_addresses(section)
    with held:
        for _ in range(2):
            with pytest.raises(SpecError, match="is in use by another process"):
                hold_addresses(section)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port))
        server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 1)])
        assert server.add_insecure_port(f"{LOOPBACK}:{port}") == port
        server.stop(None).wait()


def test_released_and_closed_ports_are_free_again():
    with hold_ports(2) as held:
        first, second = held.ports
        held.release(first)
        held.release(first)
        bind(first).close()
        assert held.ports == (second,)
    bind(second).close()


def test_many_threads_never_get_the_same_port():
    with ThreadPoolExecutor(16) as threads:
        holders = list(threads.map(lambda _: hold_ports(8), range(16)))
    ports = [port for held in holders for port in held.ports]
    assert len(set(ports)) == len(ports) == 128
    assert pick_port() not in ports
    for held in holders:
        held.close()


def test_a_master_port_is_free_for_a_server_that_cannot_share_it_and_for_no_client():
    ports = [pick_master_port() for _ in range(20)]
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in ports if first <= port <= last]
    with socket.create_server(("", ports[0])):
        pass


def test_many_processes_never_get_the_same_port():
    code = f"{HOLD_PORTS}held = hold_ports(30)\nprint(*held.ports, flush=True)\ninput()\n"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    try:
        ports = [port for child in children for port in child.stdout.readline().split()]
        assert len(set(ports)) == len(ports) == 180
    finally:
        for child in children:
            child.communicate("\n")


def test_counts_become_loopback_addresses_and_the_evaluator_gets_none():
    cluster, held = hold_addresses(ClusterSection(chief=1, worker=2, ps=1, evaluator=1))
    with held:
        assert cluster.count(Role.WORKER) == 2
        assert Role.EVALUATOR not in cluster.jobs
        assert [cluster.address(task) for task in cluster.tasks()] == [
            f"127.0.0.1:{port}" for port in held.ports
        ]


def test_given_addresses_are_held_too():
    port = pick_port()
    cluster, held = hold_addresses(ClusterSection(chief=1, ps=(f"localhost:{port}",)))
    with held:
        assert cluster.servers == (f"localhost:{port}",)
        assert port in held.ports


def test_all_unusable_addresses_are_named_and_nothing_stays_held():
    with bind(0, listen=True) as taken:
        port = taken.getsockname()[1]
        free = pick_port()
        section = ClusterSection(
            worker=(f"127.0.0.1:{free}", f"127.0.0.1:{port}"),
            ps=("198.51.100.7:2222", "no-such-host.invalid:2222"),
        )
        with pytest.raises(SpecError) as caught:
            hold_addresses(section)
    message = str(caught.value)
    assert f"cluster.worker.1: 127.0.0.1:{port} is in use" in message
    assert "cluster.ps.0: 198.51.100.7:2222 is not an address of this machine" in message
    assert "cluster.ps.1: no-such-host.invalid:2222" in message
    assert "dtrain ps --spec SPEC --index 0" in message
    bind(free).close()


def test_more_ports_than_open_files_are_allowed_is_said_before_any_is_taken():
    code = (
        f"import resource\n{HOLD_PORTS}"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))\n"
        "assert len(hold_ports(100).ports) == 100\n"
        "hold_ports(300)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "dtrain.errors.RunError: this cluster needs 332 open files, and 200 are allowed (`ulimit -Hn`); raise "
        "that, or start fewer tasks"
    )
