"""The roles of a run, a folder each: a machine, (message, now) -> actions, pure; beside it a thin driver with
its threads.

The drivers own sockets, threads and the clock; the machines own every decision, so a simulation runs them
unchanged. `heartbeat` is what every role does.
"""
