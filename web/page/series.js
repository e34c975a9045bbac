// The samples of all workers, a second each, put together: rates add up, of latencies the worst worker's counts.

export const WINDOW_S = 300;
const LATE_S = 3;

export class Series {
  #seconds = new Map(); // second -> worker -> sample
  #newest = new Map(); // worker -> its newest sample

  /** Takes what a frame brings; the same sample again changes nothing. */
  add(worker, samples) {
    for (const sample of samples) {
      if (!this.#seconds.has(sample.t)) this.#seconds.set(sample.t, new Map());
      this.#seconds.get(sample.t).set(worker, sample);
      if (!(this.#newest.get(worker)?.t >= sample.t)) this.#newest.set(worker, sample);
    }
  }

  /** Forgets what has left the window that ends now. */
  forget(now) {
    for (const t of this.#seconds.keys()) if (t < now - WINDOW_S - 5) this.#seconds.delete(t);
  }

  /** The newest sample of a worker. */
  newest(worker) {
    return this.#newest.get(worker) ?? null;
  }

  /**
   * Points in time order: {t, rate, p50, p99, confidence: {model@version: mean}}. A second that a worker has yet to
   * tell of is left out, unless that worker has been silent for longer.
   */
  points() {
    const told = [...this.#newest.values()].map((sample) => sample.t);
    const latest = Math.max(...told);
    const complete = Math.min(...told.filter((t) => t >= latest - LATE_S));
    return [...this.#seconds]
      .filter(([t]) => t <= complete)
      .sort(([a], [b]) => a - b)
      .map(([t, samples]) => merged(t, [...samples.values()]));
  }
}

function merged(t, samples) {
  const answered = samples.filter((sample) => sample.p99 !== null && sample.p99 !== undefined);
  const sums = new Map();
  for (const sample of samples) {
    for (const [model, { count, mean }] of Object.entries(sample.confidence ?? {})) {
      const sum = sums.get(model) ?? { count: 0, total: 0 };
      sums.set(model, { count: sum.count + count, total: sum.total + count * mean });
    }
  }
  return {
    t,
    rate: samples.reduce((sum, sample) => sum + (sample.rate ?? 0), 0),
    p50: answered.length ? Math.max(...answered.map((sample) => sample.p50)) : null,
    p99: answered.length ? Math.max(...answered.map((sample) => sample.p99)) : null,
    confidence: Object.fromEntries([...sums].map(([model, { count, total }]) => [model, total / count])),
  };
}
