// What the detectors of each version see, and what a person says to them.

import { byId, cell, element, emptyRow, numberCell, say, show } from "./dom.js";
import { count, moment, NONE, score } from "./format.js";
import { refusal } from "./stream.js";
import { ask, headers } from "./token.js";

const EVERY_MS = 3000;
const AUTHOR = "homunculus.author";
const SVG = "http://www.w3.org/2000/svg";
const WIDE = 320;
const TALL = 90;
const CONDITIONS = new Set([
  "drift",
  "drift_suspected",
  "drift_warning",
  "low_confidence_share",
  "low_confidence_mean",
  "label_drift",
  "input_drift",
  "performance_expected",
  "performance_drift",
]);
const NAMES = {
  auc: "AUC",
  log_loss: "log loss",
  ece: "calibration error",
  mae: "mean absolute error",
  rmse: "root mean square error",
};

let chosen = null;
let telling = false;

/** An answer of the worker; asks for a token where it wants one. */
async function call(path, options = {}) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers }, cache: "no-store" });
    if (response.status !== 401) return response;
    await ask();
  }
}

/** Follows /drift for as long as the page is looked at. */
export function setUp() {
  byId("author").value = sessionStorage.getItem(AUTHOR) ?? "";
  byId("author").addEventListener("change", () => sessionStorage.setItem(AUTHOR, byId("author").value.trim()));
  const look = () => {
    if (!document.hidden && !telling) draw().catch(() => {});
  };
  setInterval(look, EVERY_MS);
  look();
}

async function draw() {
  const response = await call("/drift");
  if (!response.ok) return;
  const { versions, trouble } = await response.json();
  const rows = versions.map(({ subject, answers, open, quality }) => ({ subject, answers, open, quality }));
  show(byId("drift").tBodies[0], [rows, chosen], () =>
    rows.length ? rows.map(row) : [emptyRow(4, "No answers were looked at yet.")],
  );
  const missing = Object.entries(trouble ?? {}).map(([worker, why]) => `${worker} ${why}`);
  show(byId("drift-troubles"), missing, () =>
    missing.map((text) => element("li", { class: "mark attention" }, text)),
  );
  if (chosen && rows.some(({ subject }) => subject === chosen)) await drawOne(chosen);
}

/** What labels say, in words: accuracy 0.812, AUC 0.753 of 1,234 labels. */
function judged({ first, last, figures: { rows, ...figures } }) {
  const told = Object.entries(figures).map(([name, value]) => `${NAMES[name] ?? name} ${score(value)}`);
  const text = `${told.join(", ")} of ${count(rows)} labels`;
  return element("div", { class: "quiet", title: `events of ${moment(first)} to ${moment(last)}` }, text);
}

function row({ subject, answers, open, quality }) {
  const pick = element("button", { type: "button", class: "link", "aria-expanded": String(subject === chosen) }, subject);
  pick.addEventListener("click", () => {
    chosen = subject === chosen ? null : subject;
    if (!chosen) byId("drift-one").replaceChildren();
    draw().catch(() => {});
  });
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, pick),
    numberCell(count(answers)),
    element(
      "td",
      { class: "wide" },
      ...(open.length
        ? open.map((one) =>
            element(
              "div",
              {},
              element("span", { class: `mark ${one.kind === "drift" ? "bad" : "attention"}` }, words(one)),
              element("span", { class: "quiet" }, ` since ${moment(one.since)}`),
            ),
          )
        : [element("span", { class: "mark good" }, "nothing is wrong")]),
      quality ? judged(quality) : null,
    ),
    open.length ? buttons(subject) : cell(""),
  );
}

const words = ({ kind, by }) => `${kind.replaceAll("_", " ")}${by ? `, known to ${by}` : ""}`;

const buttons = (subject) => element("td", { class: "wrap" }, ...says(subject, `what is wrong with ${subject}`));

/** What a person may say of an alert; nothing where that can't be said. */
export function saysOf({ id, kind, state, subject }) {
  return CONDITIONS.has(kind) && state !== "resolved" ? says(subject, `${kind.replaceAll("_", " ")} of ${subject}`, id) : [];
}

function says(subject, what, alert) {
  return ["acknowledge", "resolve"].map((action) => {
    const button = element("button", { type: "button", "aria-label": `${action} ${what}` }, action);
    button.addEventListener("click", () => tell(subject, action, alert));
    return button;
  });
}

async function tell(subject, action, alert) {
  const author = byId("author").value.trim();
  if (!author) {
    say(byId("drift-said"), "Say who you are first.");
    byId("author").focus();
    return;
  }
  const [model, version] = subject.split("@");
  telling = true;
  try {
    const response = await call(`/models/${encodeURIComponent(model)}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ action, version, author, alert }),
    });
    const told = response.ok ? `Asked for: ${action} ${subject}.` : `Refused: ${(await refusal(response)).message}.`;
    say(byId("drift-said"), told);
  } catch {
    say(byId("drift-said"), "The worker doesn't answer. Try again in a moment.");
  } finally {
    telling = false;
  }
}

async function drawOne(subject) {
  const response = await call(`/drift/${encodeURIComponent(subject)}`);
  if (!response.ok || subject !== chosen) return;
  const page = await response.json();
  const confidence = page.confidence ?? {};
  const points = confidence.life?.points?.length > 1 ? confidence.life : confidence.recent;
  const reference = confidence.reference?.mean ?? null;
  const known = detectors(page);
  show(byId("drift-one"), [subject, points, confidence.histogram, reference, known], () => [
    element("h3", {}, subject),
    ...(points?.points.length > 1 ? [overTime(points, reference)] : []),
    ...(confidence.histogram?.reference ? [spread(confidence.histogram)] : []),
    table(`Detectors of ${subject}`, known),
    element("p", { class: "quiet" }, "GET ", element("code", {}, `/drift/${subject}`)),
  ]);
}

/** What each detector has found by now: [its name, in words]. */
function detectors({ confidence, levels, labels, inputs, expected, performance }) {
  const found = [];
  if (confidence) {
    const { reference, collected, windows, in_a_row, adwin } = confidence;
    const held = reference ? `${count(reference.records)} answers, mean ${score(reference.mean)}` : `${count(collected)} answers by now`;
    found.push(["Reference", held]);
    const last = windows.at(-1);
    if (last)
      found.push([
        "Windows of 200",
        `distance ${score(last.statistic)}, differs from ${score(reference?.critical)} on; ${count(in_a_row)} in a row differ`,
      ]);
    const fall = adwin.last_fall;
    const fell = fall ? `; fell from ${score(fall.before)} to ${score(fall.after)} at ${moment(fall.ts)}` : "";
    found.push(["ADWIN", `mean ${score(adwin.mean)} of ${count(adwin.records)} answers${fell}`]);
  }
  const held = levels?.held_to;
  if (held) {
    const [share, mean] = [held.share, held.mean].map((limits) => limits.map(score).join(" and "));
    found.push(["Low confidence", `share ${score(levels.share)}, told from ${share} on`]);
    found.push(["Mean confidence", `${score(levels.mean)}, told below ${mean}`]);
  }
  if (labels && labels.p_value !== undefined) found.push(["Labels", `p ${labels.p_value ?? NONE}, ${count(labels.in_a_row)} windows in a row differ`]);
  if (inputs) found.push(["Inputs", inputs.changed.length ? `${inputs.changed.join(", ")} changed` : `none changed, ${count(inputs.windows)} windows`]);
  if (expected?.newest) found.push(["Expected accuracy", `${score(expected.newest.accuracy)}, estimated before labels come`]);
  for (const one of performance?.newest?.verdicts ?? [])
    found.push([`${NAMES[one.metric] ?? one.metric}, newest judgement`, `${score(one.window)}, reference ${score(one.reference)}`]);
  return found;
}

function table(caption, rows) {
  const lines = rows.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), cell(value, { class: "wide" })));
  return element("table", {}, element("caption", { class: "quiet" }, caption), element("tbody", {}, ...lines));
}

function drawing(label, ...parts) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, role: "img", "aria-label": label, class: "drawing" });
  svg.append(...parts);
  return svg;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function overTime({ points, records }, reference) {
  const first = points[0].ts;
  const length = Math.max(1, points.at(-1).ts - first);
  const y = (value) => TALL - 4 - (TALL - 8) * value;
  const line = points.map(({ ts, mean }) => `${(WIDE * (ts - first)) / length},${y(mean)}`).join(" ");
  const parts = [shape("polyline", { points: line, class: "line" })];
  if (reference !== null) parts.push(shape("line", { x1: 0, x2: WIDE, y1: y(reference), y2: y(reference), class: "usual" }));
  const label = `Confidence of each ${count(records)} answers, from ${score(points[0].mean)} to ${score(points.at(-1).mean)}; the reference is ${score(reference)}`;
  return figure(label, drawing(label, ...parts));
}

function spread({ reference, now, window }) {
  const shares = [reference, now ?? window ?? []].map((bins) => {
    const sum = bins.reduce((a, b) => a + b, 0) || 1;
    return bins.map((bin) => bin / sum);
  });
  const top = Math.max(...shares.flat(), 1e-9);
  const wide = WIDE / Math.max(1, reference.length);
  const parts = shares.flatMap((bins, which) =>
    bins.map((bin, i) =>
      shape("rect", {
        x: wide * (i + (which ? 0.3 : 0.05)),
        y: TALL - 2 - ((TALL - 6) * bin) / top,
        width: wide * (which ? 0.4 : 0.9),
        height: ((TALL - 6) * bin) / top,
        class: which ? "now" : "then",
      }),
    ),
  );
  const label = "How confidence is spread from 0 to 1: wide bars the reference, narrow ones the newest answers";
  return figure(label, drawing(label, ...parts));
}

const figure = (caption, drawn) => element("figure", {}, element("figcaption", { class: "quiet" }, caption), drawn);
