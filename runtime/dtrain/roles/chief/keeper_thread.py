"""Runs a `Keeping` in a thread of its own, beside training. It decides nothing.

Of a process that trains alone this is all; in a cluster `Keeper` adds what is done with servers.
"""

from collections import deque
from collections.abc import Callable, Sequence

from dtrain.errors import DtrainError
from dtrain.process.clock import LOOK_S, SYSTEM, Clock, Event, Running
from dtrain.process.file_lock import SAID_AFTER_S
from dtrain.roles.chief.machine import Action, GiveUp, Keeping, Reason, Request, Save, Tell, Warn, WriteEvent
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import Start
from dtrain.runs import notices
from dtrain.runs.trace import Trace

STOP_S = 5.0
"""The longest wait for work under way when the thread is stopped."""


class KeeperThread:
    """Carries out what the machine wants in the background; `on_failure` hears why it gives up."""

    def __init__(
        self, machine: Keeping, saver: Saver, warn: Callable[[str], None], trace: Trace, clock: Clock = SYSTEM
    ) -> None:
        self._machine = machine
        self._saver = saver
        self._warn = warn
        self._trace = trace
        self._clock = clock
        self._wake = clock.event()
        self._awaited: dict[Request, Event] = {}
        self._outcomes: dict[Request, bool] = {}
        self._start: Start | None = None
        self._thread: Running | None = None
        self.on_failure: Callable[[str], None] = lambda reason: None

    @property
    def failure(self) -> DtrainError | None:
        return self._machine.failure

    # In the program's own thread

    def begin(self, start: Start, *, save: bool) -> None:
        """Begin, and go on in the background; `save`: no checkpoint has this state yet."""
        self._start = start
        self._saver.state = state = start.state
        lost = state.lineage.rolled_back_steps
        self._receive()
        self._carry_out(self._machine.begin(state.version, lost, save=save, now=self._clock.now()))
        self._start = None
        self._go_on()

    def finish(self) -> bool:
        """Save the last step. False if the servers had to go back before that: training goes on."""
        return self._ask(Request.FINISH)

    def save_now(self) -> None:
        """Write a checkpoint now, unless the last one is written; raise its error."""
        self._ask(Request.SAVE)

    def stop(self, *, save: bool = False) -> None:
        """Stop the background work; with `save` write one last checkpoint."""
        last = self._machine.stop(self._away(), save=save)
        self._wake.set()
        if self._thread is not None and any(isinstance(action, Save) for action in last):
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                return
        before = self._machine.failure
        self._carry_out(last)
        if self._machine.failure is not before:
            self._raise_failure()

    def _ask(self, request: Request) -> bool:
        self._raise_failure()
        done = self._awaited[request] = self._clock.event()
        self._carry_out(self._machine.ask(request, self._clock.now()))
        self._wake.set()
        if self._machine.failure is None:
            begun_s, said_s = self._clock.now(), SAID_AFTER_S
            while not done.wait(LOOK_S):
                if (waited_s := self._clock.now() - begun_s) >= said_s:
                    said_s = 2 * waited_s
                    self._warn(f"waits for its checkpoint in {self._saver.directory}, {waited_s:.0f} s")
        self._raise_failure()
        return self._outcomes[request]

    def _raise_failure(self) -> None:
        if self._machine.failure is not None:
            raise self._machine.failure

    def go_back_to(self, start: Start) -> None:
        """Go on from `start`, which the newest checkpoint has: training has gone back to it."""
        self._saver.state = start.state
        self._carry_out(self._machine.restored(start.state.version, start.state.lineage.rolled_back_steps))

    # In the background

    def _go_on(self) -> None:
        self._raise_failure()
        self._thread = self._clock.start(self._run, "keeper")

    def _run(self) -> None:
        machine = self._machine
        now = self._clock.now
        try:
            while not machine.stopped and machine.failure is None:
                self._wake.wait(machine.wait_s(now()))
                self._wake.clear()
                self._carry_out(self._poll())
        except Exception as error:  # else the program would wait for this thread for ever, and not know why
            reason = DtrainError(f"nothing can be saved any more: {type(error).__name__}: {error}")
            self._carry_out(machine.failed(None, reason, now()))
            raise

    def _poll(self) -> Sequence[Action]:
        self._receive()
        return self._machine.poll(self._clock.now())

    def _receive(self) -> None:
        self._machine.own_step = 0, self._saver.step()
        self._machine.notices = range(1, notices.heard() + 1)

    def _away(self) -> Sequence[int]:
        return ()

    def _carry_out(self, actions: Sequence[Action]) -> None:
        waiting = deque(actions)
        while waiting:
            action = waiting.popleft()
            try:
                following = self._do(action)
            except DtrainError as error:
                following = self._machine.failed(action, error, self._clock.now())
            waiting.extend(following)

    def _do(self, action: Action) -> Sequence[Action]:
        match action:
            case Save():
                return self._save(action)
            case Tell(request, done):
                self._outcomes[request] = done
                self._awaited[request].set()
            case Warn(text):
                self._warn(text)
            case WriteEvent(happened):
                self._trace.event(happened)
            case GiveUp(error):
                self.on_failure(str(error))
                for event in list(self._awaited.values()):
                    event.set()
        return ()

    def _save(self, action: Save) -> Sequence[Action]:
        if action.reason is Reason.START:
            assert self._start is not None
            self._saver.save_start(self._start)
            reached: int | None = self._start.state.version
        else:
            reached = self._saver.save_cut(action.term, final=action.final, at_least=action.at_least)
        return self._machine.saved(action, reached, whole=self._saver.whole, now=self._clock.now())
