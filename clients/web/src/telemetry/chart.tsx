/** A chart over time. uPlot draws it; this component keeps it at its size, theme and data. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { theme } from "../shell/browser_state";
import { ticksUpTo } from "./axis";
import { resolveColours } from "./colours";
import { clock } from "./format";

export interface Series {
  readonly label: string;
  /** A CSS colour. */
  readonly colour: string;
  /** A line instead of an area, in a stacked chart. */
  readonly isLine?: boolean;
  readonly isDashed?: boolean;
}

export interface ChartProps {
  readonly title: string;
  readonly series: readonly Series[];
  /** Times in seconds, then one list for each series. */
  readonly data: readonly (readonly (number | null)[])[];
  /** Seconds since 1970 at the left and the right edge. */
  readonly from: number;
  readonly to: number;
  readonly format: (value: number) => string;
  /** Areas on top of one another, in the order of the series from below. */
  readonly isStacked?: boolean;
  /** Values are counts, so that the axis has no ticks between them. */
  readonly isCount?: boolean;
  /** Fixed top of the scale. */
  readonly max?: number;
  readonly height?: number;
  /** Level of its title in the page. */
  readonly heading?: "h2" | "h3";
}

const SYNC = uPlot.sync("telemetry");
/** Until there is something larger, so that a quiet chart is not all noise. */
const LEAST_TOP = 1;
const HEIGHT = 140;
/** In pixels: above the plot, of the times below it, and least between two ticks of values. */
const TOP_PADDING = 8;
const TIMES_HEIGHT = 24;
const TICK_SPACE = 25;

export function Chart(props: ChartProps) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [cursorIndex, setCursorIndex] = useState<number | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const Heading = props.heading ?? "h2";
  const drawn = useMemo(() => drawnData(props), [props.data]);
  const scheme = useScheme();

  useEffect(() => {
    const parent = frame.current;
    if (parent === null) return;
    const created = new uPlot(
      optionsFor(latest.current, parent, setCursorIndex, () => latest.current),
      drawn as uPlot.AlignedData,
      parent,
    );
    plot.current = created;
    const observer = new ResizeObserver(() => {
      created.setSize({ width: parent.clientWidth, height: latest.current.height ?? HEIGHT });
    });
    observer.observe(parent);
    return () => {
      observer.disconnect();
      created.destroy();
      plot.current = null;
    };
  }, [scheme, props.series.length]);

  useEffect(() => {
    plot.current?.batch(() => {
      plot.current?.setData(drawn as uPlot.AlignedData, false);
      plot.current?.setScale("x", { min: props.from, max: props.to });
    });
  }, [drawn, props.from, props.to]);

  const shown = props.series.map((series, index) => {
    const values = props.data[index + 1] ?? [];
    const value = cursorIndex === null ? lastOf(values) : (values[cursorIndex] ?? null);
    return { ...series, text: value === null ? "–" : props.format(value) };
  });
  return (
    <figure class="chart">
      <figcaption>
        <Heading>{props.title}</Heading>
        <ul>
          {shown.map((series) => (
            <li key={series.label}>
              <svg class="line-swatch" viewBox="0 0 12 12" aria-hidden="true">
                <rect
                  width="12"
                  height={series.isLine ? 3 : 12}
                  y={series.isLine ? 4.5 : 0}
                  rx="2"
                  fill={series.colour}
                />
              </svg>
              {series.label} <b>{series.text}</b>
            </li>
          ))}
        </ul>
      </figcaption>
      <div ref={frame} class="plot" aria-hidden="true" />
    </figure>
  );
}

function lastOf(values: readonly (number | null)[]): number | null {
  return values.at(-1) ?? null;
}

/** What is painted: stacks become sums, painted from the highest down, each over the one before. */
function drawnData({ data, series, isStacked }: ChartProps): (readonly (number | null)[])[] {
  if (!isStacked) return [...data];
  const [times = [], ...columns] = data;
  const areas: (number | null)[][] = [];
  const lines: (readonly (number | null)[])[] = [];
  const sums = new Array<number | null>(times.length).fill(null);
  for (const [index, column] of columns.entries()) {
    if (series[index]?.isLine) {
      lines.push(column);
      continue;
    }
    for (const [at, value] of column.entries()) {
      if (value !== null) sums[at] = (sums[at] ?? 0) + value;
    }
    areas.push([...sums]);
  }
  return [times, ...areas.reverse(), ...lines];
}

function paintOrder({ series, isStacked }: ChartProps): Series[] {
  if (!isStacked) return [...series];
  return [
    ...series.filter((each) => !each.isLine).reverse(),
    ...series.filter((each) => each.isLine),
  ];
}

function optionsFor(
  props: ChartProps,
  parent: HTMLElement,
  onCursor: (index: number | null) => void,
  current: () => ChartProps,
): uPlot.Options {
  const order = paintOrder(props);
  const [text = "", grid = ""] = resolveColours(["var(--muted)", "var(--line)"], parent);
  const strokes = resolveColours(
    order.map((each) => each.colour),
    parent,
  );
  const fills = resolveColours(
    order.map((each) => `color-mix(in srgb, ${each.colour} 34%, var(--surface))`),
    parent,
  );
  const axis = { stroke: text, font: "11px system-ui", ticks: { show: false } };
  const height = props.height ?? HEIGHT;
  const mostSteps = Math.floor((height - TOP_PADDING - TIMES_HEIGHT) / TICK_SPACE);
  const ticksTo = (max: number): number[] => ticksUpTo(max, mostSteps, props.isCount);
  return {
    width: parent.clientWidth || 300,
    height,
    // On the right half of a time has to fit, where the last tick is at the edge.
    padding: [TOP_PADDING, 26, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: SYNC.key },
      drag: { x: false, y: false },
      points: { show: false },
      y: false,
    },
    scales: {
      x: { time: true },
      y: {
        range: (_, __, max) => {
          const top = current().max ?? Math.max(LEAST_TOP, max || 0);
          return [0, ticksTo(top).at(-1) ?? top];
        },
      },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: TIMES_HEIGHT,
        space: 76,
        values: (_, ticks) => ticks.map((tick) => clock(tick)),
      },
      {
        ...axis,
        grid: { stroke: grid, width: 1 },
        size: 52,
        space: TICK_SPACE,
        splits: (_, __, ___, top) => ticksTo(top),
        values: (_, values) => values.map((value) => props.format(value)),
      },
    ],
    series: [
      {},
      ...order.map((each, index): uPlot.Series => {
        const isArea = props.isStacked === true && !each.isLine;
        return {
          label: each.label,
          stroke: strokes[index] ?? text,
          width: isArea ? 1 : 1.7,
          points: { show: false },
          spanGaps: false,
          ...(isArea && { fill: fills[index] ?? text }),
          ...(each.isDashed && { dash: [4, 4] }),
        };
      }),
    ],
    hooks: {
      setCursor: [
        (plot) => {
          onCursor(plot.cursor.idx != null && (plot.cursor.left ?? -1) >= 0 ? plot.cursor.idx : null);
        },
      ],
    },
  };
}

/** Changes when the colours do. */
function useScheme(): string {
  const [isDark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const list = matchMedia("(prefers-color-scheme: dark)");
    const change = (): void => setDark(list.matches);
    list.addEventListener("change", change);
    return () => list.removeEventListener("change", change);
  }, []);
  return `${theme.value}/${isDark}`;
}
