// Line charts of the last five minutes. Chart.js draws; the legend, the summary and the table are HTML.

import { byId, element, show } from "./dom.js";
import { clock, clockMinute, NONE } from "./format.js";
import { WINDOW_S } from "./series.js";

const TABLE_STEP_S = 10;
const GAP_S = 3;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A line for each of lines(points): {name, values: [{x, y}]}, with x in seconds since epoch. */
export class LineChart {
  #title;
  #format;
  #lines;
  #chart;
  #legend;
  #canvas;
  #empty;
  #table;
  #details;
  #last = null;

  constructor(id, { title, format, tick = format, lines, max, empty }) {
    this.#title = title;
    this.#format = format;
    this.#lines = lines;
    this.#legend = element("ul", { class: "legend plain" });
    this.#canvas = element("canvas", { role: "img", "aria-label": title });
    this.#empty = element("p", { class: "nothing quiet" }, empty);
    this.#table = element("table");
    this.#details = element(
      "details",
      {},
      element("summary", {}, "As a table"),
      element(
        "div",
        { class: "scroll tall", role: "group", tabindex: "0", "aria-label": `${title}, as a table` },
        this.#table,
      ),
    );
    byId(id).replaceChildren(
      element("figcaption", {}, element("h3", {}, title), this.#legend),
      element("div", { class: "canvas" }, this.#canvas, this.#empty),
      this.#details,
    );
    this.#details.addEventListener("toggle", () => this.#fillTable());
    this.#chart = new Chart(this.#canvas, {
      type: "line",
      data: { datasets: [] },
      options: options(format, tick, max),
      plugins: [marked],
    });
    this.restyle();
  }

  /** Colours as the page has them now. */
  restyle() {
    const { scales } = this.#chart.options;
    for (const axis of [scales.x, scales.y]) {
      axis.ticks.color = color("--quiet");
      axis.grid.color = axis.border.color = color("--line");
    }
    if (this.#last) this.draw(...this.#last);
  }

  /** points as Series makes them; now: seconds since epoch; marks: [{x, text}]. */
  draw(points, now, marks = []) {
    this.#last = [points, now, marks];
    const lines = this.#lines(points);
    const shown = lines.some((line) => line.values.some(({ y }) => y !== null));
    this.#empty.hidden = shown;
    this.#chart.data.datasets = lines.map((line, i) => ({
      label: line.name,
      data: line.values,
      borderColor: color(`--chart-${i % 4}`),
      backgroundColor: color(`--chart-${i % 4}`),
      borderDash: i % 2 ? [5, 3] : [],
      fill: false,
    }));
    this.#chart.options.scales.x.min = now - WINDOW_S;
    this.#chart.options.scales.x.max = now;
    this.#chart.options.plugins.marked = { marks, color: color("--bad") };
    this.#chart.update("none");
    const newest = lines.map((line) => [line.name, this.#format(line.values.findLast(({ y }) => y !== null)?.y)]);
    show(this.#legend, newest, () =>
      newest.map(([name, value], i) =>
        element(
          "li",
          {},
          element("span", { class: `swatch chart-${i % 4}`, "aria-hidden": "true" }),
          `${name} `,
          element("b", {}, value),
        ),
      ),
    );
    const said = shown ? newest.map(([name, value]) => `${name} now ${value}`).join(", ") : this.#empty.textContent;
    const drift = marks.length ? ` Marked: ${marks.map((mark) => `${mark.text} at ${clock(mark.x)}`).join(", ")}.` : "";
    this.#canvas.setAttribute("aria-label", `${this.#title} over the last five minutes: ${said}.${drift}`);
    this.#fillTable();
  }

  #fillTable() {
    if (!this.#details.open || !this.#last) return;
    const lines = this.#lines(this.#last[0]);
    const rows = new Map();
    lines.forEach((line, i) => {
      for (const { x, y } of line.values) {
        if (x % TABLE_STEP_S) continue;
        if (!rows.has(x))
          rows.set(
            x,
            lines.map(() => null),
          );
        rows.get(x)[i] = y;
      }
    });
    const data = [...rows].sort(([a], [b]) => b - a);
    show(this.#table, [lines.map((line) => line.name), data], () => [
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ...["Time", ...lines.map((line) => line.name)].map((name, i) =>
            element("th", { scope: "col", class: i ? "number" : null }, name),
          ),
        ),
      ),
      element(
        "tbody",
        {},
        ...data.map(([x, values]) =>
          element(
            "tr",
            {},
            element("th", { scope: "row" }, clock(x)),
            ...values.map((y) => element("td", { class: "number" }, y === null ? NONE : this.#format(y))),
          ),
        ),
      ),
    ]);
  }
}

/** Lines across a chart, with a word: where drift was found. */
const marked = {
  id: "marked",
  afterDatasetsDraw(chart, _, { marks = [], color: stroke }) {
    const {
      ctx,
      chartArea: { top, bottom, left, right },
      scales: { x },
    } = chart;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = stroke;
    ctx.setLineDash([2, 2]);
    ctx.font = "11px system-ui, sans-serif";
    for (const [i, mark] of marks.entries()) {
      const at = x.getPixelForValue(mark.x);
      if (at < left || at > right) continue;
      ctx.beginPath();
      ctx.moveTo(at, top);
      ctx.lineTo(at, bottom);
      ctx.stroke();
      ctx.textAlign = at > (left + right) / 2 ? "right" : "left";
      ctx.fillText(mark.text, at + (ctx.textAlign === "right" ? -4 : 4), top + 10 + 13 * (i % 4));
    }
    ctx.restore();
  },
};

function options(format, tick, max) {
  return {
    animation: false,
    parsing: false,
    normalized: true,
    responsive: true,
    maintainAspectRatio: false,
    events: ["mousemove", "mouseout", "touchstart", "touchmove"],
    interaction: { mode: "index", intersect: false },
    elements: { point: { radius: 0, hoverRadius: 3 }, line: { borderWidth: 1.75, tension: 0 } },
    spanGaps: GAP_S,
    scales: {
      x: {
        type: "linear",
        min: Date.now() / 1000 - WINDOW_S,
        max: Date.now() / 1000,
        grid: { display: false },
        border: {},
        afterBuildTicks: (axis) => {
          const first = Math.ceil(axis.min / 60) * 60;
          axis.ticks = Array.from({ length: 6 }, (_, i) => ({ value: first + 60 * i })).filter(
            ({ value }) => value <= axis.max,
          );
        },
        ticks: { autoSkip: false, maxRotation: 0, callback: (value) => clockMinute(value) },
      },
      y: {
        beginAtZero: true,
        suggestedMax: max,
        grid: {},
        border: { display: false },
        ticks: { maxTicksLimit: 5, callback: (value) => tick(value) },
        afterFit: (axis) => {
          axis.width = Math.max(axis.width, 56);
        },
      },
    },
    plugins: {
      legend: { display: false },
      tooltip: {
        callbacks: {
          title: ([item]) => (item ? clock(item.parsed.x) : ""),
          label: (item) => `${item.dataset.label}: ${format(item.parsed.y)}`,
        },
      },
    },
  };
}
