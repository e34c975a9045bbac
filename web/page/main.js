// The live page: one stream of frames, a second each, drawn as it comes.

import { LineChart } from "./charts.js";
import { byId, say } from "./dom.js";
import { setUp as setUpDrift } from "./drift.js";
import { count, duration, score } from "./format.js";
import { loadTables, setUp } from "./lookup.js";
import { drawAlerts, drawDeadLetters, drawModels, drawPartitions, drawTiles, drawWorkers, nameOf } from "./panels.js";
import { Series } from "./series.js";
import { Stream } from "./stream.js";
import { headers } from "./token.js";

const series = new Series();
let frame = null;
let alerts = { list: [], trouble: null };
let live = false;

const line = (name, of) => (points) => ({
  name,
  values: points.map((point) => ({ x: point.t, y: of(point) ?? null })),
});

const charts = {
  rate: new LineChart("rate-chart", {
    title: "Events per second",
    format: count,
    lines: (points) => [line("committed", (point) => point.rate)(points)],
    max: 10,
    empty: "No events yet.",
  }),
  latency: new LineChart("latency-chart", {
    title: "Latency",
    format: duration,
    lines: (points) => [line("p50", (point) => point.p50)(points), line("p99", (point) => point.p99)(points)],
    max: 50,
    empty: "No events in the last five minutes.",
  }),
  confidence: new LineChart("confidence-chart", {
    title: "Confidence",
    format: score,
    tick: (value) => value.toFixed(1),
    lines: (points) => {
      const versions = [...new Set(points.flatMap((point) => Object.keys(point.confidence)))].sort();
      return versions.map((version) => line(version, (point) => point.confidence[version])(points));
    },
    max: 1,
    empty: "No answers in the last five minutes.",
  }),
};

/** Where alerts of drift stand in time. */
const driftMarks = () =>
  alerts.list
    .filter(({ kind }) => /drift/.test(kind))
    .map(({ at, kind }) => ({ x: at / 1000, text: kind.replaceAll("_", " ") }));

function draw() {
  if (!frame || document.hidden) return;
  const now = Math.floor(frame.now / 1000);
  const points = series.points();
  charts.rate.draw(points, now);
  charts.latency.draw(points, now);
  charts.confidence.draw(points, now, driftMarks());
  drawTiles(frame, points.at(-1));
  drawWorkers(frame, (worker) => series.newest(worker.url)?.rate ?? null);
  drawPartitions(frame);
  drawModels(frame);
  drawDeadLetters(frame);
  drawAlerts(alerts.list, alerts.trouble, frame.now);
}

function onEvent(data) {
  frame = data;
  if (data.alerts) alerts = { list: data.alerts, trouble: data.alerts_trouble ?? null };
  for (const worker of data.workers) series.add(worker.url, worker.report?.samples ?? []);
  series.forget(data.now / 1000);
  say(byId("application"), data.application);
  const here = data.workers.find((worker) => worker.here);
  say(byId("state"), `Live, as ${here ? nameOf(here) : "this worker"} tells`);
  draw();
}

function onState(state, why) {
  if (state === "live" && !live) loadTables().catch(() => {});
  byId("others").hidden = "Authorization" in headers(); // a link sends no token
  live = state === "live";
  document.body.classList.toggle("stale", !live);
  byId("lamp").className = `lamp ${live ? "good" : "bad"}`;
  const trouble = byId("trouble");
  if (state === "gone") {
    say(byId("trouble-text"), `${why} What you see is the last that it said. This page tries again by itself.`);
    say(byId("state"), "Not connected");
  } else if (state === "locked") {
    say(byId("state"), why);
  }
  trouble.hidden = state !== "gone";
}

setUp();
setUpDrift();
const stream = new Stream("/overview/watch", { onEvent, onState });
byId("again").addEventListener("click", () => stream.tryNow());
document.addEventListener("visibilitychange", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  Object.values(charts).forEach((chart) => chart.restyle()),
);
stream.run();
