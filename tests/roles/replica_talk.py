"""The machine of a replica, and what it has said so far."""

from dtrain.messages import (
    Reply,
    Values,
    Verdict,
)
from dtrain.roles.worker.machine import ReplicaMachine, ValuesReady

MAX = 10


class Talk:
    """A replica and what it has said so far."""

    def __init__(self, servers=2, sync=True, **more):
        self.machine = ReplicaMachine(servers, generation=1, incarnation=3, plan_hash="p", sync=sync, **more)
        self.said = list(self.machine.start())

    def hear(self, server, message):
        self.said = list(self.machine.receive(server, message))
        return self.said

    def values(self, server, version, **more):
        return self.hear(server, Values(**{"generation": 1, "version": version, "max_steps": MAX, **more}))

    def reply(self, server, version, verdict=Verdict.ACCEPTED, **more):
        return self.hear(server, Reply(verdict=verdict, version=version, **more))

    def push(self, finite=True):
        self.said = list(self.machine.push(finite))
        return self.said

    @property
    def phase(self):
        """The class of the phase."""
        return type(self.machine.phase)


def ready(servers=2, version=0, term=0, **more):
    talk = Talk(servers, **more)
    for server in range(servers):
        talk.values(server, version, term=term)
    assert talk.phase is ValuesReady
    return talk


def later(talk, server, version=3, term=8):
    """A server says that there is a later term."""
    return talk.hear(server, Values(generation=1, version=version, max_steps=MAX, ticket=False, term=term))
