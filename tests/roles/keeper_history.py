"""What happens to the machine that keeps a training, one event after the other."""

from dtrain.config import CheckpointSection
from dtrain.errors import PeerLostError, WaitTimeoutError
from dtrain.messages import HeartbeatReply
from dtrain.roles.chief.machine import BeginTerm, CheckpointSchedule, Keeping, TermWatch, WriteEvent

LAST_STEP = 40
PATIENCE_S = 30.0
INCARNATION = 100
GONE = [PeerLostError("gone"), WaitTimeoutError("not there")]


def _said(generation=0, version=0, term=0, heard_of=()):
    return HeartbeatReply(
        incarnation=INCARNATION,
        generation=generation,
        version=version,
        ended=False,
        term=term,
        heard_of=heard_of,
    )


class History:
    """A machine that keeps the first generation on two servers, and the time, in seconds."""

    def __init__(self, every_s=None, every_steps=None, servers=2):
        schedule = CheckpointSchedule(CheckpointSection(every_s=every_s, every_steps=every_steps), 0.0, -1)
        watch = TermWatch(1, 0, 0.0) if servers else None
        self.machine = Keeping(schedule, LAST_STEP if servers else 0, PATIENCE_S, watch)
        self.now = 0.0
        self.events = []
        self.said = [_said() for _ in range(servers)]
        self.hear()

    def hear(self, after_s=0.0):
        self.now += after_s
        self.machine.answers = [(self.now, said) for said in self.said]

    def says(self, server, term, version=0, after_s=1.0, generation=1, heard_of=()):
        self.said[server] = _said(generation, version, term, heard_of)
        self.hear(after_s)

    def look(self, after_s=1.0):
        self.now += after_s
        return self.machine.poll(self.now)

    def ask(self, request):
        return self.machine.ask(request, self.now)

    def begun(self, given_up=-1):
        return self.noted(self.machine.begun(given_up, self.now))

    def noted(self, actions):
        """What is to be done besides keeping events in the trace."""
        self.events += [str(action.event) for action in actions if isinstance(action, WriteEvent)]
        return [action for action in actions if not isinstance(action, WriteEvent)]

    def fails(self, action, error):
        return self.machine.failed(action, error, self.now)

    def saved(self, save, reached, whole=True):
        return self.noted(self.machine.saved(save, reached, whole=whole, now=self.now))

    def at(self, version):
        for server in range(len(self.said)):
            self.says(server, self.machine.term, version)


def training(version=0, **schedule):
    """A generation whose servers train it from this version, in the first term."""
    history = History(**schedule)
    [_] = history.machine.begin(version, 0, save=False, now=history.now)
    assert history.begun() == []
    history.at(version)
    return history


def term(number, until=0, lost=0, heard_of=(), again=True):
    return BeginTerm(number, until, lost, heard_of, again)


def lost_everything(history, server=1):
    history.says(server, 0, generation=0)
