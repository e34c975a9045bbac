// One value of a table by its key, from whichever worker holds it.

import { byId, element, say } from "./dom.js";
import { refusal } from "./stream.js";
import { ask, headers } from "./token.js";

const DEPTH = 6;

let helps = {};

/** An answer of the worker; asks for a token where it wants one. */
async function get(path) {
  for (;;) {
    const response = await fetch(path, { headers: headers(), cache: "no-store" });
    if (response.status !== 401) return response;
    await ask();
  }
}

/** Fills the list of tables; what was chosen stays chosen. */
export async function loadTables() {
  const response = await get("/tables");
  if (!response.ok) return;
  const { tables } = await response.json();
  const select = byId("table");
  const chosen = select.value;
  helps = Object.fromEntries(tables.map((table) => [table.name, table.help]));
  select.replaceChildren(...tables.map(({ name }) => element("option", { value: name }, name)));
  if (tables.some(({ name }) => name === chosen)) select.value = chosen;
  explain();
}

const explain = () => say(byId("table-help"), helps[byId("table").value] ?? "");

export function setUp() {
  byId("table").addEventListener("change", explain);
  byId("lookup").addEventListener("submit", (event) => {
    event.preventDefault();
    lookUp(byId("table").value, byId("key").value);
  });
}

let turn = 0;

async function lookUp(table, key) {
  const ours = ++turn; // an answer to an older question comes too late
  const path = `/tables/${encodeURIComponent(table)}/${encodeURIComponent(key)}`;
  let found;
  try {
    const response = await get(`${path}?stale_ok=1`);
    if (response.ok) {
      const staleness = response.headers.get("X-Staleness-Ms");
      found = [
        element("h3", {}, key),
        staleness === null
          ? null
          : element(
              "p",
              { class: "mark attention" },
              `From a copy: up to ${(staleness / 1000).toFixed(1)} s old, because its owner can't answer.`,
            ),
        value(await response.json(), DEPTH),
        element("p", { class: "quiet" }, "GET ", element("code", {}, path)),
      ];
    } else {
      const why = await refusal(response);
      found = [element("p", { class: `mark ${response.status === 404 ? "plain" : "bad"}` }, sentence(why.message))];
    }
  } catch {
    found = [element("p", { class: "mark bad" }, "The worker doesn't answer. Look it up again in a moment.")];
  }
  if (ours === turn) byId("found").replaceChildren(...found.filter((part) => part !== null));
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/** Any JSON as nested lists of terms. */
function value(data, depth) {
  if (data === null || typeof data !== "object")
    return element(
      "span",
      { class: typeof data === "number" ? "digits" : null },
      data === null ? "null" : String(data),
    );
  if (!depth) return element("code", {}, JSON.stringify(data));
  if (Array.isArray(data)) {
    if (data.every((one) => one === null || typeof one !== "object"))
      return element("span", { class: "digits" }, data.length ? data.join(", ") : "none");
    return element("ol", {}, ...data.map((one) => element("li", {}, value(one, depth - 1))));
  }
  const entries = Object.entries(data);
  if (!entries.length) return element("span", { class: "quiet" }, "empty");
  return element(
    "dl",
    { class: "fields" },
    ...entries.map(([name, one]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value(one, depth - 1))),
    ),
  );
}
