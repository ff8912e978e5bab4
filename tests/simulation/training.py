"""A simulated replica in training: the real machine, driven as its driver drives it, by events instead of
threads.
"""

from typing import Any

import numpy as np
from simulation.data import Cut, sums_of
from simulation.epochs import Epochs
from simulation.lease import RECONNECT_S
from simulation.network import Blocks

from dtrain.errors import TooFewReplicasError
from dtrain.messages import AnyMessage, Conclude, Lookup, NotReady, Push, Rows, Values, Verdict
from dtrain.parameters.row_routes import Piece
from dtrain.roles.worker.machine import Phase, Replica


class Trainee:
    """The steps of one process, and of the leader what is done between them.

    Attributes:
        machine: of the present call of `fit`; None before.
        weights: of each server, the values at hand.
    """

    def __init__(self, process: Any) -> None:
        self._process = process
        self._clock = process.network.clock
        self.machine: Replica | None = None
        self.weights: list[Blocks] = []
        self.epochs = Epochs(0, 1)
        self._gradient: list[Blocks] = []
        self._pieces: dict[int, list[Piece]] = {}
        self._rows: dict[int, Blocks] = {}
        self._sequence = 0
        self._overtaken = (
            False  # the servers train the next generation, and this one's last values may never be seen
        )
        self._begun = self._computing = 0  # the steps are numbered; the one under way

    def begin(self) -> None:
        process, self._overtaken = self._process, False
        servers = range(len(process.servers))
        self.weights = [()] * len(servers)
        self.epochs = Epochs(process.generation, process.setup.scenario.steps_per_epoch)
        self.machine = Replica(
            len(servers),
            process.generation,
            process.incarnation,
            process.setup.model.plan.hash,
            process.setup.sync,
            trains=process.rank >= 0,
            saves=process.keeper is not None,
            first_judges=not process.setup.sync and process.setup.training.max_staleness is not None,
            sequence=self._sequence,
        )
        for server in servers:
            if process.wire("data", server) is None:
                self._clock.later(RECONNECT_S, self._reconnect, server)
        self.train_on()

    # Connections

    def reconnect_later(self, server: int) -> None:
        self._clock.later(RECONNECT_S + self._process.network.delay_s(), self._reconnect, server)

    def _reconnect(self, server: int) -> None:
        """Open again what broke, and say again what was not answered."""
        process = self._process
        if process.not_now(self._reconnect, server) or process.open_wire("data", server) is not None:
            return
        if process.servers[server].ended:
            process.stop(None if process.finished else f"ps:{server} is gone")
        elif process.wire("data", server) is None:
            self._clock.later(RECONNECT_S, self._reconnect, server)
        elif self.machine is not None and server in self.machine.unanswered:
            self._say(server, self.machine.unanswered[server])
        elif self._computing and process.network.random.random() < 0.5:
            self._values_broke_off(server)

    def _values_broke_off(self, server: int) -> None:
        """They had not come whole when the step began with them: it is void."""
        assert self.machine is not None
        self._computing, self._pieces = 0, {}
        self._say_all(self.machine.fetch_again(server))

    def train_on(self) -> None:
        """Pull, for the first time or because the servers have gone back."""
        assert self.machine is not None
        self._say_all(self.machine.start())

    def _say_all(self, outgoing: Any) -> None:
        for server, message in outgoing:
            self._say(server, message)

    def _say(self, server: int, message: AnyMessage) -> None:
        wire = self._process.open_wire("data", server)
        if wire is not None:
            blocks = self._gradient[server] if isinstance(message, Push) else ()
            if isinstance(message, Lookup):
                blocks = [piece.ids for piece in self._pieces[server]]
            wire.send(message, [block.copy() for block in blocks])

    def answered(self, server: int, message: AnyMessage, blocks: Blocks) -> None:
        process = self._process
        assert self.machine is not None
        if self.machine.unanswered.get(server) is None:
            return
        if isinstance(message, Rows):
            self._rows[server] = blocks
        elif isinstance(message, Values) and message.generation > process.generation:
            self._overtaken = True
        elif blocks:
            self.weights[server] = blocks
        if not isinstance(message, NotReady):
            process.network.say(f"{process.task} hears ps:{server} {message}")
        try:
            self._say_all(self.machine.receive(server, message))
        except TooFewReplicasError as error:
            process.stop(str(error))
            return
        if isinstance(message, Conclude):
            process.network.say(f"{process.task} is told {message.rows}")
            process.fit_returns(message.rows)
        if not self.machine.unanswered:
            self._settled()

    # Steps

    def _settled(self) -> None:
        machine, process = self.machine, self._process
        assert machine is not None
        self._sequence = machine.sequence
        over = machine.outcome is not None and machine.outcome.verdict is Verdict.FINISHED
        if not (over or self._overtaken):
            assert machine.phase in (Phase.READY, Phase.FINISHED)
            assert not process.setup.sync or len(set(machine.versions)) == 1, (
                f"{process.task} has versions {machine.versions}"
            )
        self._go_on()

    def _go_on(self) -> None:
        """The leader ends epochs, goes back to where the servers have gone back, and gives orders; then the
        next step begins.
        """
        machine, process, commander = self.machine, self._process, self._process.commander
        assert machine is not None
        if self._rows.keys() != self._pieces.keys():
            self._pieces = {}  # the servers have begun another term instead of an answer
        if commander is not None and not self._pieces:
            record = self.epochs.next_record(machine)
            if record is not None:
                commander.record(record, self._go_on)
                return
            if commander.has_to_repeat():
                commander.repeat(self._repeated)
                return
        if machine.phase is Phase.READY and self._pieces and self._rows.keys() == self._pieces.keys():
            self._compute()
        elif machine.phase is Phase.READY and commander is not None and commander.is_due():
            commander.give(self._ordered)
        elif machine.phase is Phase.READY:
            self._begin_step()
        elif process.keeper is not None:
            process.keeper.finishing = True
        else:
            process.next_fit()

    def _repeated(self) -> None:
        """Where the leader's permission waited for the order in force, or the servers have begun a term, it
        asks for it.
        """
        assert self.machine is not None
        if self._process.commander.waits or (self.machine.held and self.machine.phase is Phase.READY):
            self.train_on()
        else:
            self._go_on()

    def _ordered(self) -> None:
        """The leader may go on; where its permission waited for the order, or the servers have begun a term,
        it asks for it.
        """
        assert self.machine is not None
        if self.machine.held or self._process.commander.waits:
            self.train_on()
        else:
            self._begin_step()

    def _begin_step(self) -> None:
        machine = self.machine
        assert machine is not None
        if machine.trains:
            self._look_up()
        else:
            self._say_all(machine.wait_for(machine.global_step + 1))

    def _look_up(self) -> None:
        """Ask for the rows that this step uses, again if the servers have begun another term meanwhile."""
        machine, model = self.machine, self._process.setup.model
        assert machine is not None
        ids, self._pieces, self._rows = model.chosen_rows(machine.part), {}, {}
        for piece in (piece for name, listed in ids.items() for piece in model.routes.pieces(name, listed)):
            self._pieces.setdefault(piece.server, []).append(piece)
        if self._pieces:
            self._say_all(
                machine.look_up(
                    {server: tuple(p.table for p in pieces) for server, pieces in self._pieces.items()}
                )
            )
        else:
            self._compute()

    def _compute(self) -> None:
        process, machine = self._process, self.machine
        assert machine is not None
        if not self._cut().rows(machine.part):
            self._push_nothing()
            return
        mean_s = process.setup.scenario.compute_s * process.slowness
        self._begun += 1
        self._computing = self._begun
        self._clock.later(
            mean_s * process.network.random.uniform(0.5, 1.5), self._computed, machine, self._begun
        )

    def _computed(self, machine: Replica, begun: int) -> None:
        process = self._process
        if process.not_now(self._computed, machine, begun) or begun != self._computing:
            return
        self._computing = 0
        random, setup, part, cut = process.network.random, process.setup, machine.part, self._cut()
        finite, rows = random.random() >= setup.scenario.nan_rate, cut.rows(part)
        assert rows.stop <= setup.model.examples, "the counters have too few elements"
        outgoing = list(machine.push(finite, examples=len(rows), empty=cut.empty(part), sums=sums_of(rows)))
        self._gradient, self._pieces = setup.model.push_blocks(cut, part, setup.by_examples), {}
        if not finite:
            self._gradient[random.randrange(len(process.servers))][0][0] = np.nan
        self._say_all(outgoing)

    def _push_nothing(self) -> None:
        """The part has no examples."""
        machine = self.machine
        assert machine is not None
        self._gradient, self._pieces = [()] * len(self._process.servers), {}
        self._say_all(list(machine.push(examples=0, empty=self._cut().empty(machine.part))))

    def _cut(self) -> Cut:
        """How the batches are cut that ps:0 deals."""
        assert self.machine is not None
        cut = self.machine.cut
        return Cut(self._process.setup.data, cut.parts, cut.even)
