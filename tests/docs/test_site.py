"""The site: the first picture, what stands beside the pages, and by night its build and the links that lead out of it.

`.ci/run` builds the site with -W, which finds every inner link, anchor and page that is missing.
"""

import importlib.util
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
from docs.pages import ROOT

DOCS = ROOT / "docs"
PICTURE_LIMIT_BYTES = 150_000
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DRAWINGS = sorted([DOCS / "kill.svg", *DOCS.glob("concept_*.svg"), *DOCS.glob("pipeline_*.svg")])
spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
conf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conf)


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_is_small_needs_nothing_and_is_read_on_light_and_dark(path):
    text = path.read_text()
    assert len(text) < PICTURE_LIMIT_BYTES
    root = ElementTree.fromstring(text)
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text
    assert "animation" not in text or "prefers-reduced-motion: reduce" in text
    assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_the_first_picture_shows_that_a_death_moves_no_curve():
    """It is drawn from two runs: the curves have the same points to a tenth of a pixel, and the dead task has two lives."""
    text = (DOCS / "kill.svg").read_text()
    curves = re.findall(r'<polyline class="(\w+)" points="([^"]+)"', text)
    assert [kind for kind, _ in curves] == ["curve", "other"]
    assert curves[0][1] == curves[1][1]
    assert "equal to the last bit" in text
    assert text.count('class="life"') == 5  # four replicas, of which one has been started again


def test_every_guide_is_in_the_table_of_contents():
    index = (DOCS / "index.md").read_text()
    for folder in ("tutorials", "guide", "reference", "design"):
        assert f"\n{folder}/*\n" in index


@pytest.mark.parametrize(
    ("page", "holds"),
    [
        ("docs/reference/api/README", "toctree"),
        ("README", "orphan"),
        ("tests/promises", "orphan"),
        ("docs/faq", None),
    ],
)
def test_a_page_is_completed_for_the_site_only(page, holds):
    source = ["# Title\n"]
    conf.complete(None, page, source)
    assert (holds in source[0]) if holds else source == ["# Title\n"]


def test_the_pages_are_listed_for_models_by_title_and_whole(tmp_path):
    titles = {"docs/faq": "Questions", "docs/reference/api/layers": "dt.layers", "CHANGELOG": "Changelog"}
    env = SimpleNamespace(
        found_docs={"docs/index", "README", *titles},
        titles={name: SimpleNamespace(astext=lambda title=title: title) for name, title in titles.items()},
    )
    app = SimpleNamespace(builder=SimpleNamespace(name="html"), outdir=tmp_path, srcdir=ROOT, env=env)
    conf.write_for_models(app, None)
    assert "- [Questions](docs/faq.html)" in (tmp_path / "llms.txt").read_text()
    assert "layers" not in (tmp_path / "llms.txt").read_text()
    assert (DOCS / "faq.md").read_text() in (tmp_path / "llms-full.txt").read_text()


def test_the_citation_names_this_version_and_licence():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in text
    assert f"\nlicense: {PROJECT['license']}\n" in text


def test_the_public_ci_runs_the_script_that_must_pass_on_every_python():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    first = PROJECT["requires-python"].removeprefix(">=")
    assert f'python: ["{first}", "3.12", "3.13", "3.14"]' in text
    assert text.count("- run: .ci/run\n") == 2


@pytest.mark.night("it builds the site, as .ci/run does, and asks servers on the internet")
@pytest.mark.parametrize("builder", ["html", "linkcheck"])
def test_every_link_leads_somewhere(builder, tmp_path):
    pytest.importorskip("sphinx", reason="needs dtrain[docs]")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        builder,
        "-c",
        "docs",
        ".",
        tmp_path,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if builder == "html":
        assert (tmp_path / "index.html").exists()
        assert (tmp_path / "searchindex.js").exists()
        assert (tmp_path / "llms.txt").exists()
