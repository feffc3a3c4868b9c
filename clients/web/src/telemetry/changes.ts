/** From counters that only grow to what happened between two samples. */

/**
 * Growth of each counter. Counters that became smaller were begun anew (a server restarted, a window
 * moved on), so their whole content counts.
 */
export function growth(before: readonly number[], now: readonly number[]): number[] {
  const isAnew = before.some((value, index) => value > (now[index] ?? 0));
  return now.map((value, index) => (isAnew ? value : value - (before[index] ?? 0)));
}

/** Mean of g over a histogram of g; null when it is empty. */
export function meanOf(histogram: readonly number[]): number | null {
  let steps = 0;
  let total = 0;
  for (const [value, count] of histogram.entries()) {
    steps += count;
    total += value * count;
  }
  return steps === 0 ? null : total / steps;
}

/** The value that a share of the values doesn't exceed; null when there are none. Sorts in place. */
export function quantile(values: number[], share: number): number | null {
  if (values.length === 0) return null;
  values.sort((one, other) => one - other);
  const position = (values.length - 1) * share;
  const low = Math.floor(position);
  const below = values[low] as number;
  const above = values[Math.min(low + 1, values.length - 1)] as number;
  return below + (above - below) * (position - low);
}

/** Causes without their numbers, and without what was measured, so that like ones count as one. */
export function kindOfReason(reason: string): string {
  return (reason.split("; ")[0] ?? "").replace(/[-+]?\d+(?:\.\d+)?/g, "…");
}
