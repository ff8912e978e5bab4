"""What somebody does who may talk to the tasks of a run: a holder of its secret, or where none is asked for any user of the machine.

`python insider.py first PROGRAM FOLDER` is chief:0 before the real one comes, and has the worker call functions that are not
the program's. `python insider.py beside ADDRESS` says to ps:0 that chief:0 serves at an address of its own.
"""

import os
import runpy
import subprocess
import sys
import time

import numpy as np

from dtrain.cluster import AddressBook, TaskId
from dtrain.distribute.coordinator import ClusterCoordinator
from dtrain.errors import ProgramError
from dtrain.messages import Heartbeat
from dtrain.process.assignment import TaskAssignment
from dtrain.strategies.coordinator.closures import ProgramNames
from dtrain.wire.connecting import Connector
from dtrain.wire.security.credentials import Credentials

PATIENCE_S = 60.0
schedule = ClusterCoordinator.schedule


def attack(coordinator, *arguments):
    """In the place of the program's first closure: each function that a worker runs says so."""
    taken = f"{sys.argv[1]}/taken"
    for function, argument in (
        (eval, f"open({taken!r}, 'w')"),
        (os.system, f"touch {taken}"),
        (subprocess.getoutput, f"touch {taken}"),
        (np.load, "/dev/null"),
    ):
        name = function.__qualname__
        try:
            schedule(coordinator, function, args=(argument,)).fetch()
            print("HAS RUN", name)
        except ProgramError as error:
            print("REFUSED", name, error)
            try:
                coordinator.join()
            except ProgramError:
                continue
        except Exception as error:
            print("HAS RUN", name, error)
    sys.stdout.flush()
    os._exit(0)


mode, *sys.argv[1:] = sys.argv[1:]
if mode == "first":
    program, *sys.argv[1:] = sys.argv[1:]
    ProgramNames.of_function = lambda names, function, what: (function.__module__, function.__qualname__)
    ClusterCoordinator.schedule = lambda coordinator, *arguments, **named: attack(coordinator)
    runpy.run_path(program, run_name="__main__")
else:
    place = TaskAssignment.from_environment(os.environ)
    book = AddressBook(place.cluster)
    connector = Connector(place, Credentials.of(place, print), lambda *_: None, "auto", book)
    channel = connector.connect_heart(TaskId.parse("ps:0"), PATIENCE_S)
    channel.send(Heartbeat(process=(99, time.time()), incarnation=0, moved_to=sys.argv[1]))
    print(type(channel.receive(deadline=time.monotonic() + PATIENCE_S).message).__name__)
