"""The page in headless Chromium: what is drawn are the numbers, in light and dark, on small and large screens."""

import html
import json
import re
import shutil
import subprocess

import pytest
from cli.report.conftest import tell
from row_by_row import by_night

from dtrain.studies.study_spec import Better, StudySpec, ValueRange
from dtrain_cli.console.run_page import run_page
from dtrain_cli.study.study_page import study_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")

LOOK = """
<script>
const paint = (u, index) => typeof u.series[index].stroke === "function" ? u.series[index].stroke(u, index) : u.series[index].stroke;
function isThere(u, x, y, colour) {  // whether a pixel near a point has the colour
  const [left, top] = [Math.round(u.valToPos(x, "x", true)), Math.round(u.valToPos(y, "y", true))];
  const pixels = u.ctx.getImageData(left - 3, top - 3, 7, 7).data;
  const wanted = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  for (let place = 0; place < pixels.length; place += 4)
    if (pixels[place + 3] > 200 && wanted.every((each, index) => Math.abs(each - pixels[place + index]) < 32)) return true;
  return false;
}
function look() {
  return drawn.map((u) => ({
    width: u.width,
    series: u.series.slice(1).map((each, index) => {
      const points = u.data[0].map((x, place) => [x, u.data[index + 1][place]]).filter(([, y]) => y != null);
      const found = points.filter(([x, y]) => isThere(u, x, y, paint(u, index + 1)));
      return { label: each.label, colour: paint(u, index + 1), points, share: found.length / points.length };
    }),
  }));
}
const first = look();
document.querySelector("input[value=s]")?.click();
Promise.resolve().then(() => {
  const root = document.documentElement;
  const style = getComputedStyle(document.body);
  parent.postMessage({
    first, second: look(), inner: innerWidth, scrolled: root.scrollWidth, paper: style.backgroundColor, ink: style.color,
  }, "*");
});
</script></body></html>
"""

FRAME = """<!doctype html><meta name="color-scheme" content="light dark"><pre id="seen"></pre>
<script>onmessage = (said) => document.getElementById("seen").textContent = JSON.stringify(said.data);</script>
<iframe src="page.html" style="width: {width}px; height: 900px; border: 0"></iframe>"""
"""A window is never narrower than about 500 pixels; a frame is."""


def seen(tmp_path, text, width, dark):
    """What Chromium has drawn of a page, with the network off."""
    (tmp_path / "page.html").write_text(text.replace("</body></html>", LOOK))
    page = tmp_path / "frame.html"
    page.write_text(FRAME.format(width=width))
    words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", "--window-size=1700,1000"]
    words += [
        "--virtual-time-budget=5000",
        "--proxy-server=127.0.0.1:1",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    # Dark is 0, light 1.
    words += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", page.as_uri()]
    ended = subprocess.run([CHROMIUM, *words], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', ended.stdout, re.DOTALL)[1]))


def lines_of(chart):
    return {each["label"]: [tuple(point) for point in each["points"]] for each in chart["series"]}


def luminance(colour):
    channels = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(factor * each for factor, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(
    ("width", "dark"), [(400, True), (1600, False), *by_night((400, False), (1600, True))]
)
def test_what_is_drawn_are_the_numbers_by_steps_and_by_seconds(tmp_path, story_of, width, dark):
    tell(tmp_path / "a")
    found = seen(tmp_path, run_page(story_of("a")), width, dark)
    loss, accuracy, throughput, *_ = found["first"]
    # Steps 6 to 10 were made twice; the later values count.
    assert lines_of(loss)["steps"] == [(step, float(f"{1 / step:.5g}")) for step in range(1, 16)]
    assert lines_of(accuracy) == {"epochs": [(5, 0.25), (15, 0.75)], "evaluation": [(5, 0.125), (15, 0.375)]}
    assert {y for _, y in lines_of(throughput)["all tasks"]} == {150.0}
    seconds = lines_of(found["second"][0])["steps"]
    assert [x for x, _ in seconds] == [*range(1, 21)]
    assert seconds[9:12] == [(10, 0.1), (11, 0.16667), (12, 0.14286)]
    for chart in (*found["first"], *found["second"]):
        assert all(
            each["share"] > 0.8 for each in chart["series"] if each["label"] in ("steps", "all tasks")
        ), chart
        assert 0.35 * min(width, 1500) < chart["width"] <= width
    assert found["inner"] == width
    assert found["scrolled"] <= width
    paper, ink = luminance(found["paper"]), luminance(found["ink"])
    assert (paper < ink) is dark
    assert (max(paper, ink) + 0.05) / (min(paper, ink) + 0.05) > 7
    for series in loss["series"]:
        light = luminance(" ".join(str(int(series["colour"][place : place + 2], 16)) for place in (1, 3, 5)))
        assert (max(paper, light) + 0.05) / (min(paper, light) + 0.05) > 3  # as WCAG asks of graphics


def test_runs_lie_over_each_other_each_in_its_colour(tmp_path, story_of):
    tell(tmp_path / "a", "sync")
    tell(tmp_path / "b", "async", factor=2.0)
    loss, *_ = seen(tmp_path, run_page(story_of("a", "b")), 1000, dark=False)["first"]
    colours = {each["label"]: each["colour"] for each in loss["series"]}
    assert colours["sync: steps"] == colours["sync: evaluation"] != colours["async: steps"]
    assert lines_of(loss)["async: steps"][:2] == [(1, 2.0), (2, 1.0)]
    assert lines_of(loss)["sync: steps"][:2] == [(1, 1.0), (2, 0.5)]


def test_a_study_is_drawn_by_the_same_page(tmp_path):
    values = {0: 3.0, 2: 1.0, 5: 2.0}
    trials = [
        {
            "trial": number,
            "state": "complete",
            "values": {"rate": 0.5},
            "step": 7,
            "value": value,
            "why": None,
        }
        for number, value in values.items()
    ]
    ranking = sorted(values, key=values.get)
    by_number = [next((each for each in trials if each["trial"] == number), None) for number in range(6)]
    report = {"study": "s", "state": "ended", "trials": by_number, "ranking": ranking}
    report["trials"] = [each or trials[0] for each in by_number]
    spec = StudySpec("s", {"loss": Better.MINIMIZE}, {"rate": ValueRange(0, 1)})
    (chart,) = seen(tmp_path, study_page(report, spec), 800, dark=True)["first"]
    assert lines_of(chart) == {
        "each trial": [(0, 3.0), (2, 1.0), (5, 2.0)],
        "the best so far": [(0, 3.0), (2, 1.0), (5, 1.0)],
    }
    assert all(each["share"] > 0.6 for each in chart["series"])
