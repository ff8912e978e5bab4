"""What every Python process of a measured run does as it starts: note which lines follow each other in which file.

`coverage_of.py` has the interpreter execute this text (a .pth file) with `FOLDER`, where the notes go, `SOURCES`, the
folders of the files that are measured, and `TRACER`, coverage.py's tracer. coverage.py itself would keep what it has
seen in memory until a process ends, and a task that is killed would have done nothing. Here a thread writes down what
is new ten times a second, and each way out (os._exit, exec, a signal that this process sends) writes it at once.
"""

import _thread
import atexit
import importlib.machinery
import importlib.util
import marshal
import os
import signal
import sys
import threading
import time

PERIOD_S = 0.1
FORKS_SIBLINGS = "warm_commands.serve"
"""In the command of a process that must have one thread: what it has seen it writes before each fork."""


def measure(folder: str, sources: tuple[str, ...], tracer_path: str) -> None:
    """Begin to measure this process and all that it forks."""
    loader = importlib.machinery.ExtensionFileLoader("coverage.tracer", tracer_path)
    spec = importlib.util.spec_from_file_location("coverage.tracer", tracer_path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    seen: dict[str, set[int]] = {}
    written: dict[str, int] = {}
    cache: dict[str, object] = {}
    tracers = []  # they live as long as their threads

    def disposition(name: str, frame: object) -> object:
        found = module.CFileDisposition()
        found.original_filename = found.canonical_filename = name
        found.trace = name.startswith(sources)
        found.source_filename = name if found.trace else None
        found.reason, found.file_tracer, found.has_dynamic_filename = "", None, False
        return found

    def start() -> object:
        tracer = module.CTracer()
        tracer.data, tracer.trace_arcs = seen, True
        tracer.should_trace, tracer.should_trace_cache = disposition, cache
        tracer.file_tracers, tracer.concur_id_func = {}, None
        tracer.check_include = tracer.disable_plugin = lambda *words: None
        tracer.should_start_context = tracer.switch_context = None
        tracer.lock_data = tracer.unlock_data = lambda: None
        tracer.warn = lambda *words, **more: None
        tracers.append(tracer)
        return tracer.start()

    def start_in_thread(frame: object, event: str, argument: object) -> object:
        sys.settrace(None)
        function = start()
        return function(frame, event, argument) if function else function

    # Tests put others in the place of these.
    opened, write_all, close, pid, user, wait = os.open, os.write, os.close, os.getpid, os.getuid, time.sleep
    mask, encoded, to_append = signal.pthread_sigmask, marshal.dumps, os.O_WRONLY | os.O_CREAT | os.O_APPEND

    def write() -> None:
        """Add the files of which more was seen than is written; without a lock, as it runs in signal handlers."""
        new = []
        for name, pairs in seen.copy().items():
            size = len(pairs)
            if written.get(name) != size:
                new.append((name, list(pairs)))
                written[name] = size
        if not new:
            return
        try:
            file = opened(f"{folder}/{pid()}-{user()}", to_append, 0o644)
            try:
                write_all(file, encoded(new))
            finally:
                close(file)
        except OSError:
            written.clear()  # a limit of files, or a full disk, which a test has made

    def write_often() -> None:
        while True:
            wait(PERIOD_S)
            write()

    def start_writing() -> None:
        before = mask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(write_often, ())  # one that `threading` does not know
        except RuntimeError:
            pass  # a limit of processes, which a test has set
        finally:
            mask(signal.SIG_SETMASK, before)

    def written_before(function):
        def wrapped(*arguments, **named):
            write()
            return function(*arguments, **named)

        return wrapped

    for name in ("_exit", "execv", "execve", "kill", "killpg"):
        setattr(os, name, written_before(getattr(os, name)))
    atexit.register(write)
    os.register_at_fork(before=write, after_in_child=start_writing)
    start()
    threading.settrace(start_in_thread)
    if not any(FORKS_SIBLINGS in word for word in sys.orig_argv):
        start_writing()


if threading.gettrace() is None:  # a .pth file may be read twice
    measure(FOLDER, SOURCES, TRACER)  # noqa: F821
