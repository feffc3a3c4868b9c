/** What stands at an axis of values. */

/**
 * Ticks from 0 to the end of a scale, which is at or above `max`: multiples of 1, 2 or 5 times a
 * power of ten, at most `mostSteps` of them. isCount: none between whole numbers.
 */
export function ticksUpTo(max: number, mostSteps: number, isCount = false): number[] {
  const least = Math.max(max / mostSteps, isCount ? 1 : 0) || 1;
  const power = 10 ** Math.floor(Math.log10(least));
  // A tick that is a rounding error below the least step is meant to be it.
  const step = ([1, 2, 5].find((factor) => factor * power >= least * (1 - 1e-9)) ?? 10) * power;
  const numSteps = Math.max(1, Math.ceil(max / step - 1e-9));
  return Array.from({ length: numSteps + 1 }, (_, index) => index * step);
}
