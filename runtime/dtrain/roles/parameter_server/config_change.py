"""A server's part in rule *Configuration changes* (docs/design/protocol.md#configuration-changes)."""

from dtrain.control.interface import Action, Caller, Send
from dtrain.errors import DtrainError
from dtrain.messages import Control, Controlled, Hold, Holding, NotReady, Refusal
from dtrain.parameters.store import Change
from dtrain.roles.parameter_server.term_state import TermState
from dtrain.types import Blocks


def obey(
    caller: Caller, held: TermState | None, message: Hold | Control, blocks: Blocks, now: float
) -> list[Action]:
    """Hold, or change; what comes late, or a second time, changes nothing."""
    if held is None or held.generation != message.generation:
        return [Send(caller, NotReady(reason="this server holds no such variables"))]
    if isinstance(message, Hold):
        late = message.number <= held.order
        version = held.version if late else held.hold()
        return [
            Send(
                caller,
                Holding(
                    term=held.term,
                    version=version,
                    optimizer=held.store.optimizer_config,
                    stopped=held.stopped,
                    assigned=held.store.heard_assigned,
                ),
            )
        ]
    if held.term != message.term:
        return [Send(caller, NotReady(reason=f"this server does not hold term {message.term}"))]
    return _change(caller, held, message, blocks, now)


def _change(caller: Caller, held: TermState, message: Control, blocks: Blocks, now: float) -> list[Action]:
    answers: list[Action] = []
    if message.number > held.order:
        if message.stop:
            held.stopped, held.max_steps = True, message.version
            held.store.end_at(message.version, held.version)
        try:
            held.store.change(
                Change(message.version, message.optimizer, blocks, message.number), held.version
            )
        except DtrainError as error:
            return [Send(caller, Refusal(reason=str(error)))]
        held.order = message.number
        held.release(message.until)
        if message.stop:
            answers += held.rule.end_at(message.version)
            if held.steps is not None:
                held.steps.end_at(message.version)
    answers.append(Send(caller, Controlled()))
    return answers if held.steps is None else [*answers, *held.steps.share_out(now)]
