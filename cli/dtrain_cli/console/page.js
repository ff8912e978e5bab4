"use strict";
// Draws each chart of the page's data at its place. `drawn` has what stands there, for who looks at it.
const told = JSON.parse(document.getElementById("data").textContent);
const named = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (index) => named(`--c${index % 8}`);
const checked = (name) => document.querySelector(`input[name=${name}]:checked`)?.value;
let drawn = [];

// A series by one axis, ascending. Steps that were rolled back come twice; the last value counts.
function columns(series, axis) {
  const last = new Map(series.x[axis].map((x, index) => [x, series.y[index]]));
  const xs = [...last.keys()].sort((a, b) => a - b);
  return [xs, xs.map((x) => last.get(x))];
}

function drawMarks(chart, axis) {
  const ratio = devicePixelRatio;
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.setLineDash([4 * ratio, 4 * ratio]);
  let free = bbox.left;
  for (const mark of [...told.marks].sort((a, b) => a.x[axis] - b.x[axis])) {
    const x = chart.valToPos(mark.x[axis], "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = mark.colour === null ? named("--dim") : colour(mark.colour);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (x < free) continue; // no room for its text, which the table has
    free = x + 13 * ratio;
    ctx.save();
    ctx.translate(x + 3 * ratio, bbox.top + 4 * ratio);
    ctx.rotate(Math.PI / 2);
    ctx.fillText(mark.text.slice(0, 40), 0, 0);
    ctx.restore();
  }
  ctx.restore();
}

function draw(chart, place) {
  const axis = checked("x") in chart.axes ? checked("x") : Object.keys(chart.axes)[0];
  const log = checked("y") === "log" && chart.series.every((each) => each.y.every((y) => y > 0));
  const lines = { stroke: named("--ink"), grid: { stroke: named("--line"), width: 1 }, ticks: { stroke: named("--line"), width: 1 } };
  const shown = chart.series.map((each) => ({
    label: each.label, stroke: colour(each.colour), width: each.thin ? 1 : 2, dash: each.dash, spanGaps: true,
    points: { show: each.dots || each.y.length < 3, size: 5, fill: colour(each.colour) },
    paths: each.dots && !each.dash ? () => null : undefined,
  }));
  const options = {
    width: place.clientWidth, height: 280,
    scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
    axes: [{ ...lines, label: chart.axes[axis], labelSize: 20 }, { ...lines, size: 64 }],
    series: [{ label: chart.axes[axis] }, ...shown],
    hooks: { draw: chart.marked ? [(each) => drawMarks(each, axis)] : [] },
  };
  return new uPlot(options, uPlot.join(chart.series.map((each) => columns(each, axis))), place);
}

function drawAll() {
  for (const each of drawn) each.destroy();
  drawn = told.charts.map((chart, index) => draw(chart, document.getElementById(`chart-${index}`)));
}

drawAll();
for (const each of document.querySelectorAll("input[type=radio]")) each.addEventListener("change", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
let width = document.body.clientWidth;
addEventListener("resize", () => {
  if (width !== document.body.clientWidth) drawAll();
  width = document.body.clientWidth;
});
