// Server-sent events read with fetch, because EventSource sends no Authorization header. Reconnects for ever.

import { ask, headers } from "./token.js";

const SILENT_MS = 6000;
const PAUSES_MS = [500, 1000, 2000, 4000, 8000];

/** What a worker said in place of an answer. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The error of an answer that isn't one, in the worker's words. */
export async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Refused(response.status, body?.message ?? `the worker answered with status ${response.status}`);
}

/** Calls onEvent(message) for each event, and onState("live" | "gone" | "locked", why) when that changes. */
export class Stream {
  #path;
  #onEvent;
  #onState;
  #abort = null;
  #wake = null;
  #tries = 0;

  constructor(path, { onEvent, onState }) {
    this.#path = path;
    this.#onEvent = onEvent;
    this.#onState = onState;
  }

  async run() {
    for (;;) {
      try {
        await this.#read();
        this.#onState("gone", "The worker has ended the connection.");
      } catch (error) {
        if (error instanceof Refused && error.status === 401) {
          this.#onState("locked", "The worker asks for a token.");
          await ask();
          continue;
        }
        this.#onState(
          "gone",
          error instanceof Refused
            ? `The worker refuses: ${error.message}.`
            : (error.words ?? "The worker doesn't answer."),
        );
      }
      await this.#pause(PAUSES_MS[Math.min(this.#tries++, PAUSES_MS.length - 1)]);
    }
  }

  /** Ends a pause. */
  tryNow() {
    this.#wake?.();
  }

  #pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  async #read() {
    this.#abort = new AbortController();
    let timer;
    let silent = false;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        silent = true;
        this.#abort.abort();
      }, SILENT_MS);
    };
    heard();
    try {
      const response = await fetch(this.#path, { headers: headers(), signal: this.#abort.signal, cache: "no-store" });
      if (!response.ok) throw await refusal(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        heard();
        const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) this.#event(block);
      }
    } catch (error) {
      if (silent) error = Object.assign(new Error("silent"), { words: "The worker has said nothing for six seconds." });
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  #event(block) {
    let name = "message";
    const data = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    }
    if (!data.length) return;
    const message = JSON.parse(data.join("\n"));
    if (name === "end")
      throw Object.assign(new Error("ended"), { words: `The worker has ended the connection: ${message.reason}.` });
    this.#tries = 0;
    this.#onState("live");
    this.#onEvent(message);
  }
}
