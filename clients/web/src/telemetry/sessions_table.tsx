/**
 * All sessions of the latest sample. Only the rows in view are on the page, so that hundreds of
 * sessions cost no more than twenty.
 */
import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { causeAlone } from "../chat/measures";
import type { SessionTelemetry, TelemetrySample } from "../protocol.generated";
import { type SessionName, gateOf, ms, nameOf, one, or, share, stateOf, two } from "./format";
import { MEANINGS } from "./meanings";
import { keyOf, type Recorder } from "./recorder";

/** Must be the height of a row in `telemetry.css`. */
const ROW_HEIGHT = 36;
/** Rows above and below what is in view. */
const MARGIN = 6;

type SortColumn = "name" | "gate" | "acceptance" | "gamma" | "speed" | "perStep" | "first";

interface Row {
  readonly key: string;
  readonly session: SessionTelemetry;
  readonly name: SessionName;
  readonly gamma: number | null;
}

interface Column {
  readonly id: SortColumn;
  readonly label: string;
  readonly isNumber: boolean;
  readonly meaning?: string;
}

const COLUMNS: readonly Column[] = [
  { id: "name", label: "Session", isNumber: false },
  { id: "gate", label: "Gate and reason", isNumber: false, meaning: MEANINGS.gate },
  { id: "acceptance", label: "Acceptance", isNumber: true, meaning: MEANINGS.acceptance },
  { id: "gamma", label: "Drafted", isNumber: true, meaning: MEANINGS.drafted },
  { id: "perStep", label: "Tokens/step", isNumber: true, meaning: MEANINGS.perStep },
  { id: "speed", label: "Tokens/s", isNumber: true, meaning: MEANINGS.speed },
  { id: "first", label: "First token", isNumber: true, meaning: MEANINGS.first },
];

/** sample: what is shown, which in a pause is not the newest. titleOf: this browser's own name of a
 * lane. */
export function SessionsTable(props: {
  sample: TelemetrySample;
  recorder: Recorder;
  selected: string | null;
  titleOf: (lane: string) => string | null;
  onSelect: (key: string) => void;
}) {
  const [sorting, setSorting] = useState<{ id: SortColumn; isDown: boolean }>({
    id: "speed",
    isDown: true,
  });
  const { sessions, time } = props.sample;
  const rows = sessions.map((session): Row => {
    const key = keyOf(session);
    return {
      key,
      session,
      name: nameOf(session, props.titleOf),
      gamma: props.recorder.sessions.get(key)?.ring.at(time, "gamma") ?? null,
    };
  });
  rows.sort((one, other) => {
    if (one.session.active !== other.session.active) return one.session.active ? -1 : 1;
    const order = compare(valueOf(one, sorting.id), valueOf(other, sorting.id));
    return (sorting.isDown ? -order : order) || (one.key < other.key ? -1 : 1);
  });

  const frame = useRef<HTMLDivElement>(null);
  const { first, last, onScroll } = useRowsInView(frame, rows.length);
  return (
    <div
      class="sessions"
      tabIndex={0}
      role="region"
      aria-label="All sessions"
      ref={frame}
      onScroll={onScroll}
    >
      <table aria-rowcount={rows.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {COLUMNS.map((column) => (
              <th
                key={column.id}
                scope="col"
                class={column.isNumber ? "number" : undefined}
                aria-sort={
                  sorting.id !== column.id ? undefined : sorting.isDown ? "descending" : "ascending"
                }
              >
                <button
                  type="button"
                  title={column.meaning}
                  onClick={() =>
                    setSorting({
                      id: column.id,
                      isDown: sorting.id === column.id ? !sorting.isDown : column.isNumber,
                    })
                  }
                >
                  {column.label}
                  <span aria-hidden="true">
                    {sorting.id === column.id ? (sorting.isDown ? " ↓" : " ↑") : ""}
                  </span>
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <Gap numRows={first} />
          {rows.slice(first, last).map((row, offset) => (
            <SessionRow
              key={row.key}
              row={row}
              number={first + offset + 2}
              isSelected={row.key === props.selected}
              onSelect={props.onSelect}
            />
          ))}
          <Gap numRows={rows.length - last} />
        </tbody>
      </table>
    </div>
  );
}

/** In place of rows that are out of view. */
function Gap({ numRows }: { numRows: number }) {
  return numRows > 0 ? (
    <tr class="gap" aria-hidden="true">
      <td colSpan={COLUMNS.length} style={{ height: numRows * ROW_HEIGHT }} />
    </tr>
  ) : null;
}

function useRowsInView(frame: { current: HTMLElement | null }, numRows: number) {
  const [inView, setInView] = useState({ first: 0, last: 24 });
  function measure(): void {
    const element = frame.current;
    if (element === null) return;
    const first = Math.max(0, Math.floor(element.scrollTop / ROW_HEIGHT) - MARGIN);
    const last = Math.ceil((element.scrollTop + element.clientHeight) / ROW_HEIGHT) + MARGIN;
    setInView((before) =>
      before.first === first && before.last === last ? before : { first, last },
    );
  }
  useEffect(measure, [numRows]);
  const first = Math.min(inView.first, Math.max(0, numRows - 1));
  return { first, last: Math.min(inView.last, numRows), onScroll: measure };
}

interface SessionRowProps {
  readonly row: Row;
  /** Counts from 1, the heading is the first. */
  readonly number: number;
  readonly isSelected: boolean;
  readonly onSelect: (key: string) => void;
}

const SessionRow = memo(
  function SessionRow({ row, number, isSelected, onSelect }: SessionRowProps) {
    const { key, session, name, gamma } = row;
    return (
      <tr
        data-active={session.active}
        data-selected={isSelected}
        aria-rowindex={number}
        onClick={() => onSelect(key)}
      >
        <th scope="row">
          <button
            type="button"
            class="session-link"
            title={name.whole}
            aria-expanded={isSelected}
          >
            <code>{name.connection}</code>
            {name.lane !== "" && <span> {name.lane}</span>}
          </button>
        </th>
        <td class="reason-cell" title={session.reason}>
          <div>
            <span class="gate" data-gate={session.active ? session.gate : undefined}>
              {gateOf(session)}
            </span>
            <span class="reason">{causeAlone(session.reason)}</span>
          </div>
        </td>
        <td class="number">
          <svg class="share" viewBox="0 0 52 8" aria-hidden="true">
            <rect width="52" height="8" rx="4" class="bar-ground" />
            <rect width={52 * (session.acceptance ?? 0)} height="8" rx="4" class="bar-part" />
          </svg>
          {or(session.acceptance, share)}
        </td>
        <td class="number">{or(gamma, one)}</td>
        <td class="number">{or(session.tokens_per_step, two)}</td>
        <td class="number" title={session.active ? undefined : MEANINGS.done}>
          {session.active ? or(session.tokens_per_second, one) : stateOf(session)}
        </td>
        <td class="number">{or(session.time_to_first_token_ms, ms)}</td>
      </tr>
    );
  },
  (before, after) =>
    before.isSelected === after.isSelected &&
    before.number === after.number &&
    before.row.gamma === after.row.gamma &&
    before.row.name.lane === after.row.name.lane &&
    SHOWN.every((name) => before.row.session[name] === after.row.session[name]),
);

const SHOWN = [
  "active",
  "gate",
  "reason",
  "acceptance",
  "tokens_per_step",
  "tokens_per_second",
  "time_to_first_token_ms",
] as const;

function valueOf({ key, session, gamma }: Row, column: SortColumn): string | number | null {
  switch (column) {
    case "name":
      return key;
    case "gate":
      return session.gate;
    case "acceptance":
      return session.acceptance;
    case "gamma":
      return gamma;
    case "perStep":
      return session.tokens_per_step;
    case "speed":
      return session.tokens_per_second;
    case "first":
      return session.time_to_first_token_ms;
  }
}

function compare(one: string | number | null, other: string | number | null): number {
  if (one === other) return 0;
  if (one === null) return -1;
  if (other === null) return 1;
  return one < other ? -1 : 1;
}
