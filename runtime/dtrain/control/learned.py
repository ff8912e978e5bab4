"""States that the leader has learned from data, for the tasks of all hosts: rule *Learned once*
(docs/design/protocol.md#learned-once). Machine.
"""

import msgspec

from dtrain.control.interface import Caller, Send
from dtrain.messages import AskLearned, Learned

STATE_LIMIT_BYTES = 16 << 20
"""The longest state that is handed on: a vocabulary of a million words."""
STATES_LIMIT_BYTES = 64 << 20
"""The longest that all states may be together; so much memory the control host gives for them."""
STATES_MAX = 1_000


class LearnedStates(msgspec.Struct):
    """The states that the leader has told of, and who waits for one."""

    _states: dict[str, bytes] = msgspec.field(default_factory=dict)
    _waiting: dict[Caller, AskLearned] = msgspec.field(default_factory=dict)
    _nbytes: int = 0

    def store(self, message: Learned) -> list[Send]:
        """Keep a state, and answer those who wait for it. One that is too large is kept as an empty one."""
        state = message.state
        before = len(self._states.get(message.key, b""))
        held = self._nbytes - before
        if len(state) > STATE_LIMIT_BYTES or held + len(state) > STATES_LIMIT_BYTES:
            state = b""
        if message.key in self._states or len(self._states) < STATES_MAX:
            self._states[message.key] = state
            self._nbytes = held + len(state)
        callers = [caller for caller, asked in self._waiting.items() if asked.key == message.key]
        return [self._answer(caller, state) for caller in callers]

    def ask(self, caller: Caller, message: AskLearned, fits: int, ended: bool) -> list[Send]:
        """Answer a task, at once or when the leader tells of the state; only the last question on a
        connection counts. The leader has begun `fits` calls of `fit`, and `ended` after its farewell.
        """
        state = self._states.get(message.key)
        if state is None and message.fits >= fits and not ended:
            self._waiting[caller] = message
            return []
        return [Send(caller, Learned(key=message.key, state=state or b""))]

    def passed(self, fits: int | None) -> list[Send]:
        """Answer those whose place in the program the leader has passed, at call `fits`; None: it ended."""
        late = [caller for caller, asked in self._waiting.items() if fits is None or asked.fits < fits]
        return [self._answer(caller, b"") for caller in late]

    def disconnected(self, caller: Caller) -> None:
        self._waiting.pop(caller, None)

    def _answer(self, caller: Caller, state: bytes) -> Send:
        return Send(caller, Learned(key=self._waiting.pop(caller).key, state=state))
