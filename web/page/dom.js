// Elements are made, never parsed: what comes from events, tables and alerts can't become markup.

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; a text child is text. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Changes a text only when it is another one: screen readers hear what changes. */
export function say(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

const shown = new WeakMap();

/** Puts children into a place, unless what they are made of is what it shows: selections and focus stay. */
export function show(target, data, make) {
  const state = JSON.stringify(data);
  if (shown.get(target) === state) return;
  shown.set(target, state);
  target.replaceChildren(...make(data));
}

export const cell = (text, attributes = {}) => element("td", attributes, text);
export const numberCell = (text) => cell(text, { class: "number" });

/** The one row of a table that has nothing to show. */
export const emptyRow = (columns, text) => element("tr", { class: "empty" }, element("td", { colspan: columns }, text));
