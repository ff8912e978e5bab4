"""The settings of a run through resumes that fail: only those of a launch that has made a step stay."""

from dataclasses import dataclass

import pytest
from cli.launch.fake_launch import FakeTarget, TaskScript, perform
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec
from dtrain.runs.files import RunFiles, RunRecord, SavedRecord, write_record
from dtrain_cli.launch import launcher
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import read_request, with_settings_of_run


@dataclass
class NothingStarts(FakeTarget):
    """A target that has the checkpoint of step 7, and cannot start any process."""

    def hold_addresses(self, cluster):
        return ClusterSpec.from_lists(chief=["a:1"], worker=["a:2", "a:3"], ps=["a:4", "a:5"])

    def newest(self, files):
        return SavedRecord(7, "here")

    def wake_on(self, source):
        pass

    def start(self, launch):
        raise PermissionError(13, "no process today", "fork")

    def events(self, until_s):
        return []


@pytest.fixture
def run(tmp_path):
    """Return a run that has been launched with 5 pipelines, and the options that resume it without a SPEC."""
    files = RunFiles(tmp_path / "runs" / "r1")
    files.create()
    (tmp_path / "p.py").touch()
    options = LaunchOptions(program=tmp_path / "p.py", runs_dir=tmp_path / "runs")
    _, spec = read_request(replace(options, sets=("data.pipelines=5", "name=shop")), {})
    write_record(files.spec, spec)
    write_record(files.run, RunRecord("r1", "shop", saved=SavedRecord(7, "here")))
    return files, replace(options, resume="r1")


def pipelines(options) -> int:
    return read_request(with_settings_of_run(options), {})[1].data.pipelines


def resume_in_vain(options, pipelines: int) -> None:
    wrong = replace(with_settings_of_run(options), sets=(f"data.pipelines={pipelines}",))
    assert launcher.run(wrong, lambda scene: NothingStarts({})) == 127


def test_a_resume_that_fails_before_its_first_step_leaves_the_settings_as_they_were(run, capfd):
    _, options = run
    for wrong in (9, 11):
        resume_in_vain(options, wrong)
        assert f"goes on with other settings: data.pipelines 5 -> {wrong}" in capfd.readouterr().err
        assert pipelines(options) == 5


@pytest.mark.parametrize(("begins_at", "kept"), [(8, 9), (9, 5)])
def test_they_are_others_as_soon_as_a_launch_with_others_has_made_a_step(run, begins_at, kept):
    files, options = run
    resume_in_vain(options, 9)
    # The tasks of the next launch, also with 9 pipelines, say that they are at step 9.
    target = FakeTarget({"chief:0": TaskScript(lasts_s=5, status=1)})
    target.record.saved = SavedRecord(begins_at, "here")
    perform(files.directory, target)
    assert pipelines(options) == kept
