/** What stands at an axis of values. */

/** Distances between ticks of counts: 1, 2, 5, 10 and so on. */
export function wholeSteps(): number[] {
  const steps: number[] = [];
  for (let power = 1; power <= 1e9; power *= 10) steps.push(power, 2 * power, 5 * power);
  return steps;
}

/** The ticks' labels; one that would read as the tick below it does is left out. */
export function tickLabels(
  ticks: readonly number[],
  format: (value: number) => string,
): string[] {
  let before: string | null = null;
  return ticks.map((tick) => {
    const label = format(tick);
    if (label === before) return "";
    before = label;
    return label;
  });
}
