/** All sessions of the latest sample. Rows that look the same are not rendered again. */
import { memo } from "preact/compat";
import { useState } from "preact/hooks";
import type { SessionTelemetry } from "../protocol.generated";
import { ms, nameOf, one, or, share, two } from "./format";
import { keyOf, type Recorder } from "./recorder";

type SortColumn = "name" | "gate" | "acceptance" | "gamma" | "speed" | "perStep" | "first";

interface Row {
  readonly key: string;
  readonly session: SessionTelemetry;
  readonly gamma: number | null;
}

const COLUMNS: readonly { id: SortColumn; label: string; isNumber: boolean }[] = [
  { id: "name", label: "Session", isNumber: false },
  { id: "gate", label: "Gate and reason", isNumber: false },
  { id: "acceptance", label: "Acceptance", isNumber: true },
  { id: "gamma", label: "Drafted", isNumber: true },
  { id: "perStep", label: "Tokens/step", isNumber: true },
  { id: "speed", label: "Tokens/s", isNumber: true },
  { id: "first", label: "First token", isNumber: true },
];

export function SessionsTable(props: {
  sessions: readonly SessionTelemetry[];
  recorder: Recorder;
  selected: string | null;
  onSelect: (key: string) => void;
}) {
  const [sorting, setSorting] = useState<{ id: SortColumn; isDown: boolean }>({
    id: "speed",
    isDown: true,
  });
  const rows = props.sessions.map((session): Row => {
    const key = keyOf(session);
    return { key, session, gamma: props.recorder.sessions.get(key)?.gamma ?? null };
  });
  rows.sort((one, other) => {
    if (one.session.active !== other.session.active) return one.session.active ? -1 : 1;
    const order = compare(valueOf(one, sorting.id), valueOf(other, sorting.id));
    return (sorting.isDown ? -order : order) || (one.key < other.key ? -1 : 1);
  });

  return (
    <div class="sessions" tabIndex={0} role="region" aria-label="Sessions">
      <table>
        <thead>
          <tr>
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
          {rows.map((row) => (
            <SessionRow
              key={row.key}
              row={row}
              isSelected={row.key === props.selected}
              onSelect={props.onSelect}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface SessionRowProps {
  readonly row: Row;
  readonly isSelected: boolean;
  readonly onSelect: (key: string) => void;
}

const SessionRow = memo(
  function SessionRow({ row: { key, session, gamma }, isSelected, onSelect }: SessionRowProps) {
    const name = nameOf(session);
    return (
      <tr
        data-active={session.active}
        aria-selected={isSelected}
        onClick={() => onSelect(key)}
      >
        <th scope="row">
          <button type="button" class="session-link" title={session.session_id}>
            <code>{name.connection}</code>
            {name.lane !== "" && <span> {name.lane}</span>}
          </button>
        </th>
        <td class="reason-cell" title={session.reason}>
          <span class="gate" data-gate={session.gate}>
            {session.gate}
          </span>
          <span class="reason">{session.reason}</span>
        </td>
        <td class="number">
          <meter
            min={0}
            max={1}
            value={session.acceptance ?? 0}
            aria-label={`Acceptance ${or(session.acceptance, share)}`}
          />
          {or(session.acceptance, share)}
        </td>
        <td class="number">{or(gamma, one)}</td>
        <td class="number">{or(session.tokens_per_step, two)}</td>
        <td class="number">{session.active ? or(session.tokens_per_second, one) : "idle"}</td>
        <td class="number">{or(session.time_to_first_token_ms, ms)}</td>
      </tr>
    );
  },
  (before, after) =>
    before.isSelected === after.isSelected &&
    before.row.gamma === after.row.gamma &&
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
