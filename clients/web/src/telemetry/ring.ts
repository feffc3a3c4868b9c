/** Samples of the last while, in memory of a fixed size. */

export class Ring {
  private readonly times: Float64Array;
  private readonly columns: Float32Array[];
  private start = 0;
  private count = 0;

  /** names: of the columns. capacity: samples; older ones are overwritten. */
  constructor(
    readonly names: readonly string[],
    readonly capacity: number,
  ) {
    this.times = new Float64Array(capacity);
    this.columns = names.map(() => new Float32Array(capacity));
  }

  get length(): number {
    return this.count;
  }

  /** Seconds since 1970 of the newest sample; null while there is none. */
  get newest(): number | null {
    if (this.count === 0) return null;
    return this.times[(this.start + this.count - 1) % this.capacity] ?? null;
  }

  /** One value for each column, null for none. Times that don't grow are passed over. */
  push(time: number, values: readonly (number | null)[]): void {
    const { newest } = this;
    if (newest !== null && time <= newest) return;
    const at = (this.start + this.count) % this.capacity;
    this.times[at] = time;
    for (const [index, column] of this.columns.entries()) column[at] = values[index] ?? Number.NaN;
    if (this.count < this.capacity) this.count += 1;
    else this.start = (this.start + 1) % this.capacity;
  }

  /** Times and columns between two times, both included, oldest first; null where there was none. */
  between(from: number, to: number, names: readonly string[]): (number | null)[][] {
    const indexes = names.map((name) => {
      const index = this.names.indexOf(name);
      if (index < 0) throw new Error(`no column ${name}`);
      return index;
    });
    const times: number[] = [];
    const found: (number | null)[][] = names.map(() => []);
    for (let offset = this.firstAt(from); offset < this.count; offset += 1) {
      const at = (this.start + offset) % this.capacity;
      const time = this.times[at] as number;
      if (time > to) break;
      times.push(time);
      for (const [series, index] of indexes.entries()) {
        const value = this.columns[index]?.[at] ?? Number.NaN;
        found[series]?.push(Number.isNaN(value) ? null : value);
      }
    }
    return [times, ...found];
  }

  /** The value of the newest sample that is not after a time; null when it has none. */
  at(time: number, name: string): number | null {
    const index = this.names.indexOf(name);
    if (index < 0) throw new Error(`no column ${name}`);
    const after = this.firstAt(time + 1e-6);
    if (after === 0) return null;
    const value = this.columns[index]?.[(this.start + after - 1) % this.capacity] ?? Number.NaN;
    return Number.isNaN(value) ? null : value;
  }

  private firstAt(from: number): number {
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.times[(this.start + middle) % this.capacity] as number) < from) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
