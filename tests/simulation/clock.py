"""Virtual time: events in the order of their time, and threads of which one runs at a time.

The drivers that ship wait by blocking a thread. Here every thread of theirs is a real one, but it runs only while it
has the baton. A thread that waits lets events happen until it is its own turn, or hands the baton to the thread whose
turn it is. So a run is the same for the same seed, and no time passes while a thread computes.
"""

import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

ENOUGH_S = 1e9
"""The seconds since 1970 at which every run begins."""


class Killed(BaseException):
    """The process of this thread is gone: unwind."""


class Carrier(threading.Thread):
    """A thread of this process, which carries one virtual thread after the other."""

    def __init__(self) -> None:
        super().__init__(name="carrier", daemon=True)
        self.turn = threading.Lock()
        self.turn.acquire()
        self.fiber: Fiber | None = None

    def run(self) -> None:
        while True:
            self.turn.acquire()
            assert self.fiber is not None
            self.fiber.body()


IDLE: list[Carrier] = []


class Fiber:
    """A virtual thread of a task.

    Attributes:
        waits: how often it has begun to wait: a wake-up that was meant for an earlier time comes too late.
    """

    def __init__(self, clock: "Clock", life: "Life | None", run: Callable[[], None]) -> None:
        self.clock = clock
        self.life = life
        self.run = run
        self.carrier: Carrier | None = None
        self.turn: threading.Lock | None = None
        self.ready = self.finished = self.killed = False
        self.waits = 0

    def go_on(self) -> None:
        """Give it the baton."""
        if self.turn is None:
            if IDLE:
                self.carrier = IDLE.pop()
            else:
                self.carrier = Carrier()
                self.carrier.start()
            self.carrier.fiber, self.turn = self, self.carrier.turn
        self.turn.release()

    def body(self) -> None:
        """Run to the end, and pass the baton on."""
        clock = self.clock
        clock.current = self
        try:
            self.run()
        except Killed:
            pass
        except Exception as error:  # a driver's thread must not end like this
            clock.fail(error)
        self.finished = True
        assert self.carrier is not None
        IDLE.append(self.carrier)
        clock.pass_on(None)

    # As `Running`

    def is_alive(self) -> bool:
        return not self.finished

    def join(self, timeout: float | None = None) -> None:
        clock = self.clock
        until = ENOUGH_S if timeout is None else clock.now + timeout
        while not self.finished and clock.now < until and clock.current is not self:
            clock.park(min(until, clock.now + 0.1))


class Clock:
    """The time of one run.

    Attributes:
        now: seconds.
        current: the virtual thread that runs; None while an event happens.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.current: Fiber | None = None
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0
        self._ready: deque[Fiber] = deque()
        self._fibers: list[Fiber] = []
        self._failure: Exception | None = None
        self._over: Callable[[], bool] = lambda: False
        self._looks = False
        self._main = Fiber(self, None, lambda: None)
        self._main.turn = threading.Lock()
        self._main.turn.acquire()

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + delay_s, self._scheduled, act, arguments))

    def at(self, time_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (time_s, self._scheduled, act, arguments))

    # The whole run

    def run(self, over: Callable[[], bool]) -> None:
        """Let everything happen until it is over, and end all threads; raises what went wrong anywhere."""
        self._over = over
        self.current = self._main
        try:
            self._let_happen(self._main)
        finally:
            self._end_all()
        if self._failure is not None:
            raise self._failure

    def look(self) -> None:
        """Something has ended: look after this event whether everything has."""
        self._looks = True

    def fail(self, error: Exception) -> None:
        """End the run with this error."""
        self._failure = self._failure or error
        self._wake_main()

    def _wake_main(self) -> None:
        if not self._main.ready:
            self._main.ready = True
            self._ready.appendleft(self._main)

    def _end_all(self) -> None:
        self._over = lambda: False
        self._events.clear()
        while left := [fiber for fiber in self._fibers if not fiber.finished]:
            for fiber in left:
                self.kill(fiber)
            self._main.ready = True
            self._ready.append(self._main)
            self._let_happen(self._main)

    # Threads

    def start(self, life: "Life", run: Callable[[], None]) -> Fiber:
        fiber = Fiber(self, life, run)
        self._fibers.append(fiber)
        self.wake(fiber)
        return fiber

    def wake(self, fiber: Fiber, waits: int | None = None) -> None:
        """Let a thread that waits look whether it may go on."""
        if not (fiber.ready or fiber.finished) and (waits is None or waits == fiber.waits):
            fiber.ready = True
            self._ready.append(fiber)

    def kill(self, fiber: Fiber) -> None:
        """End a thread: where it waits, `Killed` is raised."""
        fiber.killed = True
        if fiber.turn is None:
            fiber.finished = True
        elif fiber is not self.current:
            self.wake(fiber)

    def park(self, until_s: float | None = None) -> None:
        """Wait until another thread wakes this one, or for this time; it may also return for nothing."""
        me = self.current
        assert me is not None, "an event must not wait"
        if me.killed:
            raise Killed
        me.waits += 1
        if until_s is not None:
            self.at(until_s, self.wake, me, me.waits)
        self._let_happen(me)
        if me.killed:
            raise Killed

    def pass_on(self, me: Fiber | None) -> bool:
        """Let events happen until a thread is to go on; True if that is `me`, else it has the baton now."""
        while True:
            while self._ready:
                fiber = self._ready.popleft()
                fiber.ready = False
                if fiber.finished:
                    continue
                life = fiber.life
                if life is not None and life.paused_until_s > self.now and not fiber.killed:
                    self.at(life.paused_until_s, self.wake, fiber, fiber.waits)
                    continue
                if fiber is me:
                    self.current = me
                    return True
                fiber.go_on()
                return False
            self.current = None
            self._next_event()

    def _let_happen(self, me: Fiber) -> None:
        if not self.pass_on(me):
            assert me.turn is not None
            me.turn.acquire()
            self.current = me

    def _next_event(self) -> None:
        if not self._events:
            self.fail(AssertionError("nothing is left to happen"))
            return
        self.now, _, act, arguments = heapq.heappop(self._events)
        try:
            act(*arguments)
            if self._looks and self._over():
                self._wake_main()
            self._looks = False
        except Exception as error:  # whatever a machine raises is a broken rule too
            self.fail(error)


class Flag:
    """As `dtrain.process.clock.Event`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._set = False
        self._waiting: list[Fiber] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for fiber in self._waiting:
            self._clock.wake(fiber)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        clock = self._clock
        until = None if timeout is None else clock.now + timeout
        me = clock.current
        assert me is not None
        self._waiting.append(me)
        try:
            while not self._set and (until is None or clock.now < until):
                clock.park(until)
        finally:
            self._waiting.remove(me)
        return self._set


class Life:
    """One life of a task: its threads, and the clock that its drivers have (`dtrain.process.clock.Clock`).

    Attributes:
        paused_until_s: until then it stands still.
        alive: whether it is there.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._fibers: list[Fiber] = []
        self.paused_until_s = 0.0
        self.alive = True

    def pause(self, for_s: float) -> None:
        """Stand still; what arrives meanwhile waits."""
        self.paused_until_s = max(self.paused_until_s, self._clock.now + for_s)

    def end(self) -> None:
        """Be gone, with all threads."""
        self.alive = False
        for fiber in self._fibers:
            self._clock.kill(fiber)

    def not_now(self, act: Callable[..., None], *arguments: Any) -> bool:
        """Whether nothing happens to it now: it is gone, or stands still; then `act` comes later."""
        if self.alive and self.paused_until_s > self._clock.now:
            self._clock.at(self.paused_until_s, act, *arguments)
            return True
        return not self.alive

    def now(self) -> float:
        return self._clock.now

    def wall(self) -> float:
        return ENOUGH_S + self._clock.now

    def sleep(self, seconds: float) -> None:
        until = self._clock.now + seconds
        while self._clock.now < until:
            self._clock.park(until)

    def event(self) -> Flag:
        return Flag(self._clock)

    def start(self, run: Callable[[], None], name: str = "") -> Fiber:
        fiber = self._clock.start(self, run)
        self._fibers.append(fiber)
        return fiber
