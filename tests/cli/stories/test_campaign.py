"""Campaigns: what is judged, what breaks a promise, what goes on where it was stopped."""

import json
import re
import signal
from pathlib import Path

import pytest
from answers import is_of
from launching import wait_until
from net.commands import dtrain

from dtrain.config import KillFault, SimulateSection
from dtrain.errors import SpecError
from dtrain.runs.files import RunFiles
from dtrain_cli.stories.campaign import StoryResult, judge, read_campaign

EXAMPLES = Path(__file__).parents[3] / "examples"
KILL = SimulateSection(kill=(KillFault("worker:0", at_step=5),))
CAMPAIGN = """\
program: digits.py
arguments: [--steps, 200]
spec:
  cluster: {chief: 1, worker: 1, ps: 1}
  training: {updates: sync}
  checkpoint: {every_steps: 20}
stories:
  - name: the server dies
    simulate: {kill: [{task: ps:0, at_step: 60}]}
"""


def result(**changes):
    """What a story that has kept every promise came to."""
    good = {"state": "succeeded", "exit_code": 0, "steps": 100, "counted": 300, "due": 300, "loss": 0.2}
    good |= {"seconds": 4.5, "faults": 1, "restarts": 1, "run_dir": "", "words": []}
    return StoryResult(story="it", **(good | changes))


CALM = result(seconds=3.0, faults=0)


def test_a_story_like_the_undisturbed_run_keeps_every_promise():
    judge(told := result(), CALM, KILL, 0.1)
    assert (told.broken, told.lost_s) == ([], 1.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exit_code": 137, "state": "failed"}, "exit code 137: failed"),
        ({"steps": 90}, "ended at step 90, the undisturbed run at 100"),
        ({"counted": 299}, "299 parts of batches counted, 300 were due"),
        ({"counted": 301}, "301 parts of batches counted, 300 were due"),
        ({"loss": 0.31}, "loss is 0.31"),
        ({"loss": float("nan")}, "loss is nan"),
        ({"faults": 0}, "0 of 1 faults happened"),
        ({"left": 2}, "2 of its processes lived on"),
        ({"steps": None, "counted": None, "due": None, "loss": None}, "left no checkpoint"),
    ],
)
def test_each_promise_can_be_broken(changes, words):
    judge(told := result(**changes), CALM, KILL, 0.1)
    assert len(told.broken) == 1
    assert words in told.broken[0]


def test_seeds_draw_other_moments_and_names_are_told_apart(tmp_path):
    campaign = read_campaign(EXAMPLES / "campaign.yaml")
    told = list(campaign.told())
    assert len(told) == len({story.name for story in told}) >= 11
    drawn = [story.simulate.seed for story in told if "drawn" in story.name]
    assert len(set(drawn)) == len(drawn) == 2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("at_step: 60", "at_stp: 60", r"c\.yaml:9:\d+: stories\.0\.simulate\.kill\.0\.at_stp: unknown key"),
        ("ps:0", "ps:7", r"c\.yaml:9:\d+: .*ps:7"),
        ("digits.py", "none.py", r"none\.py: cannot read the program"),
        (
            "name: the server dies",
            "name: undisturbed",
            r"c\.yaml:8:\d+: stories\.0\.name: expected another name",
        ),
        ("name: the server dies", "name: ..", r"c\.yaml:8:\d+: stories\.0\.name: expected another name"),
        (
            "worker: 1, ps",
            "workr: 1, ps",
            r"c\.yaml:4:\d+: spec\.cluster\.workr: unknown key; did you mean worker",
        ),
        ("program: digits.py\n", "", r"c\.yaml: program: expected a value, found none"),
        (", at_step: 60", "", r"expected exactly one of at_step and at_s"),
    ],
)
def test_every_mistake_has_its_place(tmp_path, before, after, words):
    (tmp_path / "digits.py").write_text((EXAMPLES / "digits.py").read_text())
    assert before in CAMPAIGN
    (tmp_path / "c.yaml").write_text(CAMPAIGN.replace(before, after))
    code, _, err = dtrain("chaos", "--campaign", "c.yaml", folder=tmp_path)
    assert code == 2, err
    assert re.search(words, err), err
    assert not (tmp_path / "runs").exists()


def test_a_campaign_needs_no_run_and_a_run_no_campaign(tmp_path):
    for words in (
        ["digits", "kill", "ps:0", "--campaign", "c.yaml"],
        ["digits"],
        ["--campaign", "c.yaml", "r"],
    ):
        code, _, err = dtrain("chaos", *words, folder=tmp_path)
        assert code == 2
        assert "--campaign" in err


def test_stories_are_told_once_and_a_broken_promise_is_exit_code_1(launcher):
    """The second story's fault comes too late to happen, so its run proves nothing."""
    for path in (EXAMPLES / "digits.py", EXAMPLES / "data" / "digits.csv.gz"):
        place = launcher.folder / path.relative_to(EXAMPLES)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(path.read_bytes())
    late = "  - name: too late\n    simulate: {kill: [{task: ps:0, at_step: 5000}]}\n"
    file = launcher.folder / "c.yaml"
    file.write_text(CAMPAIGN)
    words = ("chaos", "--campaign", "c.yaml", "--runs-dir", "kept", "--json")
    first = launcher.dtrain(*words)
    assert first.end() == 0, first.err
    first.wait_gone()
    is_of("chaos", json.loads(first.out))
    calm, story = json.loads(first.out)["stories"]
    assert [each["story"] for each in (calm, story)] == ["undisturbed", "the server dies"]
    assert (story["steps"], story["counted"], story["due"]) == (200, 400, 400)
    assert (story["faults"], story["restarts"], story["left"], story["broken"]) == (1, 1, 0, [])
    assert story["loss"] == pytest.approx(calm["loss"], abs=1e-6), "synchronous steps are the same"

    listed = launcher.dtrain("runs", "--json")
    assert listed.end() == 0, listed.err
    assert json.loads(listed.out) == [], "the runs of stories are no runs of the user's"

    file.write_text(CAMPAIGN + late)
    second = launcher.dtrain(*words[:-1])
    assert second.end() == 1, second.err
    assert "story 2 of 2: too late" in second.err
    assert "story 1" not in second.err, "it was told before"
    assert "0 of 1 faults happened" in second.err
    kept = json.loads(
        (launcher.folder / "kept" / "campaigns" / "c" / "the server dies" / "result.json").read_text()
    )
    assert kept["run_dir"] == story["run_dir"]
    assert re.search(r"the server dies .*400 of 400", second.out)


def test_a_program_that_fails_without_faults_has_no_stories_told(launcher):
    (launcher.folder / "bad.py").write_text("import dtrain\nraise ValueError('bad')\n")
    (launcher.folder / "c.yaml").write_text(CAMPAIGN.replace("digits.py", "bad.py"))
    told = launcher.dtrain("chaos", "--campaign", "c.yaml", "--runs-dir", "kept")
    assert told.end() == 1
    assert "no story is told" in told.err
    assert not (launcher.folder / "kept" / "campaigns" / "c" / "the server dies").exists()


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "c.yaml").write_text("- 1\n")
    with pytest.raises(SpecError, match="expected a mapping"):
        read_campaign(tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text("program: p.py\nstories: []\nspec: 5\n")
    with pytest.raises(
        SpecError, match=r"c\.yaml:3:1: spec: expected a file with a spec, or the keys of one"
    ):
        read_campaign(tmp_path / "c.yaml")


def test_two_campaigns_do_not_share_a_folder(tmp_path):
    (tmp_path / "digits.py").write_text((EXAMPLES / "digits.py").read_text())
    (tmp_path / "c.yaml").write_text(CAMPAIGN)
    with RunFiles(tmp_path / "runs" / "campaigns" / "c").held("taken"):
        code, _, err = dtrain("chaos", "--campaign", "c.yaml", folder=tmp_path)
    assert code == 2
    assert "another campaign" in err


def test_ctrl_c_stops_a_story_in_order_and_the_same_command_goes_on(launcher):
    (launcher.folder / "c.yaml").write_text(CAMPAIGN.replace("digits.py", "forever.py"))
    launcher.program("status()\nforever()", "forever.py")
    told = launcher.dtrain("chaos", "--campaign", "c.yaml", "--runs-dir", "kept")
    folder = launcher.folder / "kept" / "campaigns" / "c" / "undisturbed"
    wait_until(lambda: list(folder.glob("run/tasks/worker-0/status.json")), "a worker of the story")
    told.send(signal.SIGINT)
    assert told.end() == 130, told.err
    told.wait_gone()
    assert "the same command goes on" in told.err
    assert not (folder / "result.json").exists()
    assert json.loads((folder / "run" / "run.json").read_text())["state"] == "stopped"
