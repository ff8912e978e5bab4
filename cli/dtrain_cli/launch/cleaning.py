"""The removal of files that runs have left on the hosts where their tasks ran, for `dtrain rm`."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dtrain.config import RunSpec
from dtrain.config.choices import On
from dtrain.errors import DtrainError
from dtrain.runs.files import read_record
from dtrain_cli.agent import leftovers
from dtrain_cli.agent.leftovers import Leftovers, Removed
from dtrain_cli.agent.messages import MAGIC
from dtrain_cli.fleet.host_rules import AT_ONCE
from dtrain_cli.launch.on_hosts import slurm_folder
from dtrain_cli.runs.index import KnownRun
from dtrain_cli.runs.where import WhereRecord, where_of
from dtrain_cli.targets.ssh import NoSshError, explained, login_command

_TRIES = 4
_QUICK_S = 2.0
"""An sshd that refuses a login by chance does so at once."""
ANSWER_S = 60.0


def clean_hosts(runs: Sequence[KnownRun]) -> list[str]:
    """Remove what runs have left on their hosts; return a sentence for each host on which something stays."""
    places = {run.record.run: where_of(run.files) for run in runs}
    visits: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if (place := places[run.record.run]).engine is On.SSH:
            for host in place.all_hosts:
                visits.setdefault((host, _python(run)), []).append(run.record.run)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        orders = [Leftovers(host, names) for (host, _), names in visits.items()]
        answers = list(pool.map(_visited, orders, [python for _, python in visits]))
    said = [sentence for each in zip(orders, answers, strict=True) for sentence in _problems(*each)]
    return said + [
        sentence
        for name, place in places.items()
        if place.engine is On.SLURM
        for sentence in _on_shared_disk(name, place)
    ]


def _python(run: KnownRun) -> str:
    """Return the interpreter on the hosts of a run."""
    try:
        spec = read_record(run.files.spec, RunSpec)
    except (DtrainError, OSError):
        spec = None
    return (spec.python if spec else None) or sys.executable


def _visited(order: Leftovers, python: str) -> Removed | str:
    """Return what a host has removed, or why it could not be asked."""
    reason = ""
    for _ in range(_TRIES):
        begun_s = time.monotonic()
        try:
            done = subprocess.run(
                login_command(order.host, [python, "-P", "-m", leftovers.__name__]),
                input=msgspec.json.encode(order),
                capture_output=True,
                timeout=ANSWER_S,
            )
        except FileNotFoundError:
            return str(NoSshError(f"{order.host}: there is no ssh here; install an OpenSSH client"))
        except subprocess.TimeoutExpired:
            return f"{order.host}: no answer within {ANSWER_S:g} s"
        before, magic, answer = done.stdout.partition(MAGIC + b"\n")
        if magic:
            try:
                return msgspec.json.decode(answer, type=Removed)
            except (ValueError, RecursionError) as error:
                return f"{order.host}: its answer is not one of this version: {error}"
        words = (before + b"\n" + done.stderr).decode(errors="replace")
        reason, again = explained(order.host, done.returncode, words, python)
        if not again or time.monotonic() - begun_s > _QUICK_S:  # one that does not answer is not asked anew
            break
    return reason


def _problems(order: Leftovers, answer: Removed | str) -> Iterator[str]:
    if isinstance(answer, str):
        runs = f"run {order.runs[0]}" if len(order.runs) == 1 else f"{len(order.runs)} runs"
        folder = f"dtrain/hosts/{order.host} of its state directory"
        yield f"{answer}; what {runs} left there stays, in {folder}"
        return
    for run, problem in answer.problems.items():
        yield f"{order.host}: what run {run} left there stays: {problem}"


def _on_shared_disk(run: str, place: WhereRecord) -> Iterator[str]:
    """Remove what a run on Slurm's nodes has left on a disk that this machine sees too."""
    found = False
    for number in range(len(place.all_hosts)):
        done = leftovers.remove(Leftovers(slurm_folder(number), [run]))
        found = found or bool(done.found)
        yield from (f"what run {run} left on its nodes stays: {why}" for why in done.problems.values())
    if not found and place.hosts:
        nodes = ", ".join(place.all_hosts)
        yield (
            f"what run {run} left on its nodes ({nodes}) cannot be seen from here, and stays there, in "
            "dtrain/hosts/slurm-N of the state directory"
        )
