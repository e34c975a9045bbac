// What the newest frame says, in tiles, tables and lists.

import { saysOf } from "./drift.js";
import { byId, cell, element, emptyRow, numberCell, say, show } from "./dom.js";
import { ago, count, duration, moment, NONE, ranges, share } from "./format.js";

const SEVERITIES = { critical: "Critical", warning: "Warning", info: "Info" };

/** A worker's name; its address while it has not told one. */
export const nameOf = (worker) => worker.report?.worker ?? address(worker.url);

function address(url) {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}

/** Partition -> {worker, open, lag, reason}: those that nobody has are there too. */
function placed(frame) {
  const found = new Map(
    Array.from({ length: frame.partitions }, (_, n) => [
      n,
      { worker: null, open: false, lag: null, reason: "no worker has it" },
    ]),
  );
  for (const worker of frame.workers) {
    const told = new Map((worker.trouble ? [] : (worker.report?.partitions ?? [])).map((one) => [one.number, one]));
    for (const n of worker.partitions) {
      found.set(n, {
        worker: nameOf(worker),
        open: told.get(n)?.open ?? false,
        lag: told.get(n)?.lag ?? null,
        reason: told.get(n)?.reason || (worker.trouble ? `its worker ${worker.trouble}` : "opening"),
      });
    }
  }
  return found;
}

/** The tiles. newest: the newest point of the charts. */
export function drawTiles(frame, newest) {
  const partitions = [...placed(frame).values()];
  const lags = partitions.filter((one) => one.lag !== null);
  const open = partitions.filter((one) => one.open).length;
  const ready = frame.workers.filter((worker) => !worker.trouble && worker.report?.ready).length;
  const reports = frame.workers.filter((worker) => worker.report).map((worker) => worker.report);
  const letters = reports.flatMap((report) => Object.values(report.dead_letters)).reduce((a, b) => a + b, 0);
  const events = reports.reduce((sum, report) => sum + report.events, 0);
  const worst = lags.reduce((most, one) => Math.max(most, one.lag), 0);

  tile("rate", count(newest?.rate ?? null), `${count(events)} since the start`);
  tile(
    "latency",
    duration(newest?.p99 ?? null),
    newest?.p50 == null ? "no events at the moment" : `p50 ${duration(newest.p50)}`,
  );
  tile(
    "lag",
    lags.length ? count(lags.reduce((sum, one) => sum + one.lag, 0)) : NONE,
    !lags.length ? "not known yet" : worst ? `worst partition ${count(worst)}` : "nothing waits",
  );
  tile(
    "open",
    `${open} of ${frame.partitions}`,
    open === frame.partitions ? "all of them" : "events wait in the others",
    open === frame.partitions,
  );
  tile(
    "workers",
    `${ready} of ${frame.workers.length}`,
    ready === frame.workers.length ? "ready" : `${frame.workers.length - ready} not ready`,
    ready === frame.workers.length,
    "workers-count",
  );
  tile("dead", count(letters), "since the start", letters === 0);
}

function tile(id, value, note, fine = true, valueId = id) {
  say(byId(valueId), value);
  say(byId(`${id}-note`), note);
  byId(valueId).parentElement.classList.toggle("attention", !fine);
}

export function drawWorkers(frame, rateOf) {
  const rows = [...frame.workers]
    .sort((a, b) => nameOf(a).localeCompare(nameOf(b)))
    .map((worker) => ({
      name: nameOf(worker),
      here: worker.here,
      state:
        worker.trouble ?? (worker.report?.ready ? "ready" : (worker.report?.reasons.join("; ") ?? "not known yet")),
      fine: !worker.trouble && Boolean(worker.report?.ready),
      warnings: worker.trouble ? [] : (worker.report?.warnings ?? []),
      partitions: ranges(worker.partitions),
      rate: worker.trouble ? NONE : count(rateOf(worker)),
    }));
  show(byId("workers").tBodies[0], rows, () =>
    rows.map((row) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, row.name, row.here ? element("div", { class: "quiet" }, "this one") : null),
        element(
          "td",
          { class: "wide" },
          mark(row.fine ? "good" : "bad", row.state),
          ...row.warnings.map((text) => element("div", {}, mark("attention", text))),
        ),
        cell(row.partitions),
        numberCell(row.rate),
      ),
    ),
  );
}

/** A state in words, with a shape beside it: colour alone tells nothing. */
const mark = (kind, text) => element("span", { class: `mark ${kind}` }, text);

export function drawPartitions(frame) {
  const rows = [...placed(frame)].sort(([a], [b]) => a - b);
  const most = Math.max(1, ...rows.map(([, one]) => one.lag ?? 0));
  show(byId("partitions").tBodies[0], rows, () =>
    rows.map(([n, one]) => {
      const bar = element("span", { class: "bar" });
      bar.style.inlineSize = `${(100 * (one.lag ?? 0)) / most}%`;
      return element(
        "tr",
        {},
        element("th", { scope: "row", class: "number" }, String(n)),
        cell(one.worker ?? "nobody"),
        one.open ? numberCell(count(one.lag)) : element("td", { colspan: 2, class: "wide" }, mark("bad", one.reason)),
        one.open ? element("td", { "aria-hidden": "true", class: "bars" }, bar) : null,
      );
    }),
  );
}

/** How long ago; when exactly, on asking. */
const time = (ms, now) =>
  element("time", { datetime: new Date(ms).toISOString(), title: moment(ms), class: "quiet" }, ago(ms, now));

/** What a worker says is wrong with a model there, or under way. */
function troublesOf(frame) {
  const found = [];
  for (const worker of frame.workers) {
    if (worker.trouble) continue;
    for (const [model, { error, loading }] of Object.entries(worker.report?.models ?? {})) {
      if (error) found.push(`${model} on ${nameOf(worker)}: ${error}`);
      if (loading) found.push(`${nameOf(worker)} is loading ${model}@${loading.version}: ${loading.stage}`);
    }
  }
  for (const [model, { behind, revision }] of Object.entries(frame.models)) {
    if (behind.length) found.push(`${model}: ${behind.join(", ")} not at revision ${revision} yet`);
  }
  return found.sort();
}

export function drawModels(frame) {
  const reporting = frame.workers.filter((worker) => !worker.trouble && worker.report).length;
  const rows = Object.entries(frame.models)
    .sort(([a], [b]) => a.localeCompare(b))
    .flatMap(([model, { sides, frozen }]) => sides.map((side) => ({ model, frozen, ...side })));
  show(byId("models").tBodies[0], [rows, reporting, Math.floor(frame.now / 60_000)], () =>
    rows.length
      ? rows.map((row) =>
          element(
            "tr",
            {},
            element(
              "th",
              { scope: "row" },
              row.model,
              row.frozen ? element("div", {}, mark("attention", "frozen")) : null,
            ),
            cell(row.version),
            cell(row.role),
            numberCell(share(row.share)),
            numberCell(share(row.error)),
            agreement(row),
            rightness(row),
            cell(row.on.length === reporting && reporting > 1 ? `all ${reporting}` : row.on.join(", "), {
              class: "wrap",
            }),
            element("td", {}, time(row.since, frame.now)),
          ),
        )
      : [emptyRow(9, 'No model is live: publish {"active": VERSION} to control, keyed by the model\'s name.')],
  );
  const said = troublesOf(frame);
  show(byId("model-troubles"), said, () => said.map((text) => element("li", {}, mark("attention", text))));
}

/** How often a version on trial says what the one beside it says, and of how many events that is known. */
function agreement({ agreement, figures }) {
  if (agreement === null) return numberCell(NONE);
  const told = element("td", { class: "number" }, share(agreement));
  told.append(element("div", { class: "quiet" }, `of ${count(figures.compared ?? 0)}`));
  return told;
}

/** How many of its labelled answers were right, and how many labels have come. */
function rightness({ accuracy, figures }) {
  const told = numberCell(share(accuracy));
  if (figures.labelled) told.append(element("div", { class: "quiet" }, `of ${count(figures.labelled)}`));
  return told;
}

export function drawDeadLetters(frame) {
  const reasons = new Map();
  for (const worker of frame.workers) {
    for (const [reason, number] of Object.entries(worker.report?.dead_letters ?? {}))
      reasons.set(reason, (reasons.get(reason) ?? 0) + number);
  }
  const rows = [...reasons].sort(([, a], [, b]) => b - a);
  show(byId("dead-letters").tBodies[0], rows, () =>
    rows.length
      ? rows.map(([reason, number]) =>
          element("tr", {}, element("th", { scope: "row" }, reason), numberCell(count(number))),
        )
      : [emptyRow(2, "None: every record could be processed.")],
  );
}

let known = null;

export function drawAlerts(alerts, trouble, now) {
  show(byId("alerts"), [alerts, trouble, Math.floor(now / 10_000)], () => {
    if (trouble) return [element("li", { class: "nothing" }, mark("attention", `Alerts can't be read: ${trouble}.`))];
    if (!alerts.length) return [element("li", { class: "nothing quiet" }, "No alerts.")];
    return alerts.map((alert) =>
      element(
        "li",
        { class: "alert" },
        element(
          "div",
          {},
          mark(
            alert.state === "resolved" ? "good" : severity(alert),
            `${SEVERITIES[alert.severity] ?? alert.severity}, ${alert.state}`,
          ),
          " ",
          element("b", {}, alert.subject),
          " ",
          time(alert.at, now),
        ),
        element("div", {}, alert.title),
        element("div", { class: "quiet" }, alert.kind, " ", ...saysOf(alert)),
      ),
    );
  });
  const ids = new Set(alerts.map((alert) => alert.id));
  const added = known === null ? [] : alerts.filter((alert) => !known.has(alert.id));
  if (added.length) say(byId("new-alert"), `New alert: ${added[0].title}`);
  known = ids;
}

const severity = (alert) =>
  alert.severity === "critical" ? "bad" : alert.severity === "warning" ? "attention" : "plain";
