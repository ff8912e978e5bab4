import threading

from dtrain.wire.grpc_service import Traffic, TransferTurn


def test_a_turn_waits_as_long_as_something_moves_and_no_longer():
    traffic = Traffic()
    first, second = TransferTurn(traffic, traffic.receiving), TransferTurn(traffic, traffic.receiving)
    waits = []

    class Lock:
        """In whose waits the first one moves two chunks, and then stalls."""

        def acquire(self, timeout):
            waits.append(timeout)
            if len(waits) <= 2:
                first.moved()
            return False

    first.acquire()
    second._lock = Lock()
    second.acquire()
    assert second.taken
    assert len(waits) == 3  # two in which something moved, one in which nothing did


def test_whoever_gives_back_lets_the_next_one_in():
    traffic = Traffic()
    first, second = TransferTurn(traffic, traffic.sending), TransferTurn(traffic, traffic.sending)
    first.acquire()
    first.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    assert not second.taken
    first.give_back()
    first.give_back()
    waiting.join(timeout=20)
    assert second.taken
    assert traffic.sending.locked()
    second.give_back()
    assert not traffic.sending.locked()


def test_only_the_holder_counts_as_moving():
    traffic = Traffic()
    turn = TransferTurn(traffic, traffic.sending)
    turn.moved()
    assert traffic.moved == 0
    turn.acquire()
    turn.moved()
    assert traffic.moved == 1
