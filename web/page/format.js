// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const percent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const time = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const NONE = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** A count, or a rate: 1,234; below ten with a decimal unless it is whole. */
export function count(value) {
  if (!known(value)) return NONE;
  return (Math.abs(value) < 10 && !Number.isInteger(value) ? tenth : whole).format(value);
}

/** Milliseconds with their unit: 4.2 ms, 87 ms, 1.3 s. */
export function duration(ms) {
  if (!known(ms)) return NONE;
  if (ms === 0) return "0 ms";
  if (ms >= 999.5) return `${tenth.format(ms / 1000)} s`;
  return `${(ms < 9.95 ? tenth : whole).format(ms)} ms`;
}

/** A share of one: 12.5%. */
export const share = (value) => (known(value) ? percent.format(value) : NONE);

/** A score between 0 and 1. */
export const score = (value) => (known(value) ? value.toFixed(3) : NONE);

/** Seconds since epoch as a time of day. */
export const clock = (seconds) => time.format(seconds * 1000);
export const clockMinute = (seconds) => minute.format(seconds * 1000);

/** ms since epoch as a day and a time. */
export const moment = (ms) => (known(ms) ? day.format(ms) : NONE);

/** How long ago, in the largest unit that fits: 5 min ago. */
export function ago(ms, now) {
  if (!known(ms)) return NONE;
  const seconds = Math.max(0, Math.round((now - ms) / 1000));
  if (seconds < 5) return "just now";
  for (const [unit, length] of [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ]) {
    const units = Math.floor(seconds / length);
    if (units) return `${units} ${unit} ago`;
  }
  return NONE;
}

/** Numbers as ranges: 0-3, 6. */
export function ranges(numbers) {
  const parts = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && n === last[1] + 1) last[1] = n;
    else parts.push([n, n]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(", ") || NONE;
}
