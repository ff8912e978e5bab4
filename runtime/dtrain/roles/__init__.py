"""The roles of a run: one machine a role, (message, now) -> actions, pure; beside each a thin driver with its threads.

`parameter_server` (with its two ways of treating a push, `sync_pushes` and `async_pushes`), `worker`, `chief`, `evaluator`.
The drivers own sockets, threads and the clock; the machines own every decision, so a simulation runs them unchanged.
"""
