"""The entry point of every child process.

    python -m dtrain.task PROGRAM [ARGS...]
        one task; the environment names it (`TaskAssignment`)
    python -m dtrain.task --fork-server LAUNCHER LIFELINE [--bare]
        the fork server of a launcher; it inherits both file descriptors
    python -m dtrain.task --warm-server SOCKET
        a process that forks such fork servers (`dtrain fork-server`)

A parameter server serves and never runs the program; any other task runs it. A task that fails leaves a
failure record. A task writes the stacks of its threads to its log on SIGUSR2, takes SIGUSR1 as a notice of
preemption (`runs.notices`), and leaves in order on SIGTERM:
SystemExit(143) is raised in the main thread (training turns it into a last checkpoint). A second SIGTERM
kills a task without a launcher. A launcher has SIGKILL for that, and its task hears no second one: an engine
that ends a job signals every process of it, and the launcher then tells each task again.
"""

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dtrain.cluster import Role
from dtrain.errors import RunError, SpecError
from dtrain.process import life_line
from dtrain.process.assignment import TaskAssignment
from dtrain.process.private_variables import own_environment
from dtrain.process.resources import keep_freed_memory
from dtrain.runs import failure, notices
from dtrain.task import program


def main(arguments: list[str]) -> int:
    """Run one task, or the fork server; return the exit code."""
    bare = arguments[:1] == ["--fork-server"] and "--bare" in arguments
    if not bare:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors that matter get messages of dtrain's own
    keep_freed_memory()
    _write_stacks_on_request()
    notices.heed()
    if arguments[:1] == ["--warm-server"]:
        from dtrain.task.fork_server import serve_launchers

        try:
            arguments = ["--fork-server", *map(str, serve_launchers(Path(arguments[1])))]
        except RunError as error:
            print(f"dtrain: {error}", file=sys.stderr)  # noqa: T201
            return RunError.exit_code
    if arguments[:1] == ["--fork-server"]:
        from dtrain.task import fork_server

        launcher_fd, life_line_fd = map(int, arguments[1:3])
        arguments = fork_server.serve(launcher_fd, life_line_fd, imports=not bare).argv
    if not arguments:
        print("usage: python -m dtrain.task PROGRAM [ARGS...]", file=sys.stderr)  # noqa: T201
        return SpecError.exit_code
    return run(arguments[0], arguments[1:])


def run(path: str, arguments: list[str]) -> int:
    """Run the task that the environment describes to its end; return its exit code."""
    signal.signal(signal.SIGTERM, _leave)
    # Between the fork and the child's first step Python forgets signals that it has heard: they have to wait.
    hold, heed = (
        partial(signal.pthread_sigmask, how, {signal.SIGTERM})
        for how in (signal.SIG_BLOCK, signal.SIG_UNBLOCK)
    )
    os.register_at_fork(before=hold, after_in_parent=heed, after_in_child=_die_of_sigterm)
    assignment = None
    try:
        heed()  # the fork server blocks it, so that none is lost before there is a handler
        assignment = TaskAssignment.from_environment(own_environment())
        if assignment is not None:
            leave = partial(_leave, again=_hear_no_more)
            if not assignment.launched:
                leave = partial(_leave, first=_limit_of(assignment))
            signal.signal(signal.SIGTERM, leave)
        if assignment is not None and assignment.task.role is Role.PS:
            from dtrain.roles.parameter_server import serving

            serving.serve(assignment)
        else:
            program.run(path, arguments)
    except BaseException as error:  # every way out of the program, SystemExit and KeyboardInterrupt included
        if assignment is not None:
            failure.record(error, assignment)
        program.close(error)
        with contextlib.suppress(OSError, ValueError):  # the program has closed its stderr
            failure.show(error)
        return failure.exit_code(error)
    return 0


def _write_stacks_on_request() -> None:
    """Write stacks on a crash and on SIGUSR2; set before any fork, so that SIGUSR2 kills no young task."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)


def _limit_of(assignment: TaskAssignment) -> Callable[[], None]:
    """Return a function that limits the time a task takes to leave, for tasks without a launcher."""
    grace_s = assignment.spec.wait.grace(launched=False)
    last_word = (
        f"dtrain: {assignment.task}: has not left {grace_s:g} s after the order to stop "
        "(wait.grace_s): it is killed"
    )
    return life_line.limit_leaving(grace_s, last_word)


def _leave(
    number: int,
    _frame: FrameType | None,
    first: Callable[[], None] = lambda: None,
    again: Callable[[int], None] = life_line.die_of,
) -> None:
    first()
    again(number)
    raise SystemExit(128 + number)


def _hear_no_more(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)


def _die_of_sigterm() -> None:
    """Let processes that the program forks die of SIGTERM, as a pool expects of its workers."""
    handler = signal.getsignal(signal.SIGTERM)
    if getattr(handler, "func", handler) is _leave:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end(code: int) -> NoReturn:
    """End as Python does - threads, exit functions, output - but leave gRPC alone, whose end may hang."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.unraisablehook = _show_unless_told_to_leave
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader or the disk is gone
            stream.flush()
    os._exit(code)


def _show_unless_told_to_leave(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print an unraisable error, unless SIGTERM interrupted an exit function: the task is leaving."""
    if not isinstance(unraisable.exc_value, SystemExit):
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    _end(main(sys.argv[1:]))
