"""A server's answers about the variables of a coordinator program (docs/design/coordinator.md). Machine."""

from dtrain.errors import DtrainError, InputError
from dtrain.messages import Alter, Altered, AnyMessage, Look, Refusal, RefusalKind, Share, Shared, Shown
from dtrain.parameters.placement import Plan
from dtrain.roles.parameter_server.shared.variables import SharedVariables
from dtrain.types import Blocks


class SharedAnswers:
    """The variables that this server holds for a coordinator.

    Attributes:
        held: None before the coordinator has shared them.
    """

    def __init__(self, server: int, servers: int) -> None:
        """Hold nothing; `server` is this one of so many."""
        self._server = server
        self._servers = servers
        self.held: SharedVariables | None = None

    @property
    def nbytes(self) -> int:
        """The size of all values."""
        return 0 if self.held is None else self.held.nbytes

    def answer(self, message: Share | Look | Alter, blocks: Blocks) -> tuple[AnyMessage, Blocks]:
        """Answer a message; the blocks of the answer may be this server's own memory."""
        match message:
            case Share():
                return self._share(message, blocks), ()
            case Look():
                return self._look(message)
            case Alter():
                return self._alter(message, blocks)

    def _share(self, message: Share, blocks: Blocks) -> AnyMessage:
        """Hold other variables; those of an earlier session are given up. Repeating it changes nothing."""
        if self.held is not None and message.session <= self.held.session:
            if message.session == self.held.session:
                return Shared()
            return Refusal(reason=f"{self._name} holds the variables of a later session")
        try:
            plan = Plan.from_dict(message.plan)
            if plan.servers != self._servers:
                raise InputError(f"a plan for {plan.servers} servers, and the cluster has {self._servers}")
            self.held = SharedVariables(message.session, plan, self._server, blocks)
        except DtrainError as error:
            return Refusal(reason=f"the coordinator's plan and values do not fit together: {error}")
        return Shared()

    def _look(self, message: Look) -> tuple[AnyMessage, Blocks]:
        """Answer with the newest values."""
        if isinstance(held := self._of(message.session), Refusal):
            return held, ()
        try:
            return Shown(iterations=held.iterations), held.look(message.shards)
        except InputError as error:
            return Refusal(reason=f"{self._name}: {error}"), ()

    def _alter(self, message: Alter, blocks: Blocks) -> tuple[AnyMessage, Blocks]:
        """Make a change once."""
        if isinstance(held := self._of(message.session), Refusal):
            return held, ()
        try:
            values = held.alter(message, blocks)
            return Altered(iterations=held.iterations.get(message.optimizer, 0)), values
        except DtrainError as error:
            return Refusal(reason=f"{self._name}: {error}"), ()

    @property
    def _name(self) -> str:
        return f"ps:{self._server}"

    def _of(self, session: int) -> SharedVariables | Refusal:
        if self.held is not None and self.held.session == session:
            return self.held
        if self.held is None or self.held.session < session:
            reason = f"{self._name} has lost the variables of this program: it was started again"
            return Refusal(reason=reason, kind=RefusalKind.LOST)
        reason = f"{self._name} serves a later process of the coordinator"
        return Refusal(reason=reason, kind=RefusalKind.ENDED)
