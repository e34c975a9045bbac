// The token of a worker that asks for one: kept for this tab alone, sent as a header and never in an address.

import { byId, say } from "./dom.js";

const KEY = "homunculus.token";

/** Headers of a request to the worker. A header holds bytes: those of UTF-8, as the worker compares them. */
export function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${String.fromCharCode(...new TextEncoder().encode(token))}` } : {};
}

let asked = null;

// Without a token there is nothing to see: who closes the dialog gets it back.
byId("token-dialog").addEventListener("close", (event) => {
  if (asked) event.target.showModal();
});

/** Asks for a token; resolves once somebody has given one. All who ask at the same time share one dialog. */
export function ask() {
  asked ??= new Promise((resolve) => {
    const dialog = byId("token-dialog");
    const input = byId("token");
    const wrong = sessionStorage.getItem(KEY) !== null;
    say(
      byId("token-why"),
      wrong
        ? "It doesn't know the token that was given. Give the value of its HOMUNCULUS_WEB_READ_TOKEN or HOMUNCULUS_WEB_TOKEN."
        : "Give the value of its HOMUNCULUS_WEB_READ_TOKEN or HOMUNCULUS_WEB_TOKEN.",
    );
    input.setAttribute("aria-invalid", String(wrong));
    input.value = "";
    byId("token-form").addEventListener(
      "submit",
      () => {
        sessionStorage.setItem(KEY, input.value.trim());
        input.value = "";
        asked = null;
        resolve();
      },
      { once: true },
    );
    dialog.showModal();
    input.focus();
  });
  return asked;
}
