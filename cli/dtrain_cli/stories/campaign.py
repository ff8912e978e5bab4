"""`dtrain chaos --campaign FILE`: launches of one program with faults, each judged beside one without.

Faults are those of a spec's `simulate` section. What a story has told is in its folder, so that a campaign
which was stopped goes on with the stories that are missing. The judge believes no launch: it reads the
run's files, and looks through the processes of this machine.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain.config import EMBEDDED_DEFAULT, Problem, SimulateSection
from dtrain.config.plain_data import AtLeast0, AtLeast1, below
from dtrain.errors import SpecError
from dtrain.process.assignment import RUN_DIR
from dtrain.process.start_protocol import name_of_forked
from dtrain.runs.files import RunFiles, RunRecord, read_record, write_record
from dtrain_cli.console.live_table import fitted_table
from dtrain_cli.console.run_table import stdout_console
from dtrain_cli.console.streams import say
from dtrain_cli.launch.child import see_to_its_end
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request
from dtrain_cli.runs.report import read_report
from dtrain_cli.spec import SpecTree, inner_spec, mistakes_text, read_tree, sound_part
from dtrain_cli.targets.signals import SignalInbox, signal_name

UNDISTURBED = "undisturbed"
_STRIKES = ("SIGKILL", "SIGSTOP")


class StorySpec(msgspec.Struct, frozen=True):
    """One launch, or `seeds` of them with other draws."""

    name: str
    simulate: SimulateSection
    seeds: AtLeast1[int] = 1

    def over(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Return a spec with these faults."""
        return spec | {"simulate": msgspec.json.decode(msgspec.json.encode(self.simulate))}


class CampaignSpec(msgspec.Struct, frozen=True):
    """A campaign as its file says it.

    Attributes:
        program: relative to the file's folder, as `spec` is where that is a file.
        loss_within: how far the training loss of the last epoch may be from that of the undisturbed run.
    """

    program: str
    stories: tuple[StorySpec, ...]
    arguments: tuple[str | int | float, ...] = ()
    spec: str | dict[str, Any] | None = None
    loss_within: AtLeast0[float] = 0.1

    @property
    def launched(self) -> dict[str, Any]:
        assert isinstance(self.spec, dict), "read_campaign has read it"
        return self.spec

    def problems(self) -> Iterator[Problem]:
        names = [story.name for story in self.stories]
        if not names:
            yield ("stories",), "expected at least one story, found none"
        for index, story in enumerate(self.stories):
            taken = story.name == UNDISTURBED or story.name in names[:index]
            if taken or not re.fullmatch(r"\w[\w ,.-]{0,79}", story.name):
                yield (
                    ("stories", index, "name"),
                    f"expected another name, of letters, digits and blanks, found {story.name!r}",
                )
            yield from below(("stories", index, "simulate"), story.simulate.problems())

    def told(self) -> Iterator[StorySpec]:
        """Yield the stories as they are told: the undisturbed run first, and one for each seed."""
        yield StorySpec(UNDISTURBED, SimulateSection())
        for story in self.stories:
            for number in range(story.seeds):
                name = f"{story.name} #{number}" if story.seeds > 1 else story.name
                seed = story.simulate.seed + number
                yield replace(story, name=name, simulate=replace(story.simulate, seed=seed))


class StoryResult(msgspec.Struct, kw_only=True):
    """The outcome of one story; a number is None where the run has not come so far.

    Attributes:
        counted: parts of batches of the last `fit` that are in the last checkpoint, by its own record.
        due: as many as the steps of that `fit` are made of.
        loss: of the last epoch, over all replicas.
        lost_s: how much longer it took than the undisturbed run.
        left: processes of the run that lived when its launch had ended.
        broken: the promises that were not kept, a sentence each.
        words: what was launched: the result counts for nothing else.
    """

    story: str
    state: str
    exit_code: int
    steps: int | None = None
    counted: int | None = None
    due: int | None = None
    loss: float | None = None
    seconds: float | None = None
    lost_s: float | None = None
    restarts: int = 0
    rolled_back_steps: int = 0
    faults: int = 0
    left: int = 0
    broken: list[str] = msgspec.field(default_factory=list)
    run_dir: str
    words: list[str]


def read_campaign(path: Path) -> CampaignSpec:
    """Read the file of a campaign; raise a `SpecError` with everything that is wrong, a line each."""
    tree = read_tree(path)
    sound, problems = sound_part(tree, CampaignSpec)
    spec = msgspec.convert({"program": "p.py", "stories": []} | sound, CampaignSpec)
    problems += (problem for problem in spec.problems() if problem[0][0] in sound)
    problems.sort(key=lambda problem: tree.position(problem[0]))
    base, more = inner_spec("spec", tree, path.parent, foreign=False)
    if lines := [tree.describe(*problem) for problem in problems] + more:
        raise SpecError(mistakes_text(lines))
    base = base or {"cluster": msgspec.to_builtins(EMBEDDED_DEFAULT.cluster)}
    program = (path.parent / spec.program).absolute()
    for index, story in enumerate(spec.stories):
        place = ("stories", index, "simulate")
        at = {("simulate", *key[3:]): where for key, where in tree.positions.items() if key[:3] == place}
        launched = SpecTree(str(path), story.over(base), at)
        read_request(LaunchOptions(earlier=launched, program=program))  # that it can be launched
    return replace(spec, program=str(program), spec=base)


def run_campaign(spec: CampaignSpec, out: Path) -> tuple[int, list[StoryResult]]:
    """Run the stories of a campaign that have no result in the folder `out`.

    Return the exit code (1: a promise was broken; that of a signal which has stopped it) and what all of
    them, the undisturbed run first, came to.

    Raises:
        RunInUseError: another campaign uses the folder.
    """
    with RunFiles(out).held(f"{out}: another campaign runs its stories there"):
        return _run_stories(spec, out, SignalInbox())


def _run_stories(spec: CampaignSpec, out: Path, signals: SignalInbox) -> tuple[int, list[StoryResult]]:
    results: list[StoryResult] = []
    stories = list(spec.told())
    for number, story in enumerate(stories):
        folder = out / story.name
        words = ["launch", "--runs-dir", str(folder), "--run-dir", str(folder / "run")]
        words += [str(folder / "spec.json"), spec.program, *map(str, spec.arguments)]
        given = json.dumps(story.over(spec.launched))
        result = read_record(folder / "result.json", StoryResult)
        if result is None or result.words != [*words, given]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "spec.json").write_text(given)
            say(f"story {number} of {len(stories) - 1}: {story.name}")
            code, stopped = see_to_its_end(words, folder / "launch.log", signals, lambda: None)
            if stopped is not None:
                say(f"{signal_name(stopped)}: stopped; the same command goes on with this story")
                return 128 + stopped, results
            result = gathered(story.name, code, RunFiles(folder / "run"))
            result.words = [*words, given]
            write_record(folder / "result.json", result)
        judge(result, (results or [result])[0], story.simulate, spec.loss_within)
        results.append(result)
        for sentence in result.broken:
            say(f"{story.name}: {sentence}; see {folder / 'launch.log'}")
        if number == 0 and result.broken:
            say("without faults the program does not keep its promises either, so no story is told")
            break
    return int(any(result.broken for result in results)), results


def gathered(story: str, code: int, files: RunFiles) -> StoryResult:
    """Gather what the files of a run, and the processes of this machine, say of it."""
    result = StoryResult(story=story, state="none", exit_code=code, run_dir=str(files.directory), words=[])
    record = read_record(files.run, RunRecord)
    if record is None:
        return result
    result.left = _living(files.directory, record.launcher_pid)
    report = read_report(files.directory)
    result.state, result.rolled_back_steps = str(report["state"]), report["rolled_back_steps"]
    result.restarts = sum(task["restarts"] for task in report["tasks"])
    events = [json.loads(line) for line in files.journal.read_text().splitlines()]
    result.faults = sum(event["event"] == "fault" and event["signal"] in _STRIKES for event in events)
    if record.started and record.ended:
        took = datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)
        result.seconds = round(took.total_seconds(), 1)
    if (step := files.newest_step) is not None:
        fit = json.loads((files.checkpoints / f"ckpt-{step}" / "manifest.json").read_text())["extra"]
        parts, following, missing, backups, _ = fit["dealt"]
        result.steps, result.due = fit["version"], (fit["version"] - fit["lineage"]["first_step"]) * parts
        used = following - len(missing)
        result.counted = min(used, result.due) if backups else used  # what came too late is in no step
        rows = fit["history"].get(str(fit["generation"])) or {}
        result.loss = rows[max(rows, key=int)].get("loss") if rows else None
    return result


def _living(directory: Path, launcher_pid: int | None) -> int:
    """Return how many processes of a run live: those of its fork server by name, others by environment."""
    name, variable = name_of_forked(launcher_pid).encode(), os.fsencode(f"{RUN_DIR}={directory.absolute()}")
    living = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            forked = (process / "comm").read_bytes().strip() == name
            living += forked or variable in (process / "environ").read_bytes().split(b"\0")
    return living


def judge(
    result: StoryResult, undisturbed: StoryResult, simulate: SimulateSection, loss_within: float
) -> None:
    """Write down which promises a story has broken, and what time it has lost."""
    strikes = len(simulate.kill) + len(simulate.pause)
    broken = {
        f"the launch ended with exit code {result.exit_code}: {result.state}": result.exit_code != 0,
        "it has left no checkpoint, by which steps are counted": result.steps is None,
        f"it ended at step {result.steps}, the undisturbed run at {undisturbed.steps}": (
            result.steps not in (None, undisturbed.steps)
        ),
        f"{result.counted} parts of batches counted, {result.due} were due": result.counted != result.due,
        f"{result.faults} of {strikes} faults happened; the run may be too short": result.faults != strikes,
        f"{result.left} of its processes lived on": result.left > 0,
    }
    result.broken = [text for text, so in broken.items() if so]
    loss, calm = result.loss, undisturbed.loss
    if loss is not None and calm is not None and not abs(loss - calm) <= loss_within:
        text = (
            f"its loss is {loss:.4g}, that of the undisturbed run {calm:.4g}: {loss_within:g} apart at most"
        )
        result.broken.append(text)
    if result.seconds is not None and undisturbed.seconds is not None:
        result.lost_s = round(result.seconds - undisturbed.seconds, 1)


_COLUMNS = ("story", "state", "steps", "counted", "loss", "seconds", "lost s", "restarts", "left", "broken")


def show(results: list[StoryResult]) -> None:
    """Print the table of a campaign, a row for each story."""
    rows = []
    for each in results:
        counted = "" if each.counted is None else f"{each.counted} of {each.due}"
        times = (each.seconds, each.lost_s, each.restarts, each.left)
        cells = (each.story, each.state, each.steps, counted, each.loss, *times, "; ".join(each.broken))
        rows.append({name: _text(cell) for name, cell in zip(_COLUMNS, cells, strict=True)})
    console, headings = stdout_console(), dict(zip(_COLUMNS, _COLUMNS, strict=True))
    first_to_go = ("state", "seconds", "steps")
    console.print(fitted_table(rows, headings, _COLUMNS[2:9], first_to_go, "broken", console.width))


def _text(cell: Any) -> str:
    return "" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)
