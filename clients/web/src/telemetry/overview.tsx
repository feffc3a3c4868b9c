/** The server as a whole: numbers of this moment, and charts. */
import { causeAlone } from "../chat/measures";
import type { TelemetrySample } from "../protocol.generated";
import { Chart, type Series } from "./chart";
import { kindOfReason, quantile } from "./changes";
import { ms, one, or, share, whole } from "./format";
import { MEANINGS } from "./meanings";
import type { Recorder, SERVER_COLUMNS } from "./recorder";

export interface View {
  readonly from: number;
  readonly to: number;
}

export function Tiles({ sample, recorder }: { sample: TelemetrySample; recorder: Recorder }) {
  const { server } = sample;
  const active = sample.sessions.filter((session) => session.active);
  const rates = active.flatMap((each) => (each.acceptance === null ? [] : [each.acceptance]));
  const { time } = sample;
  return (
    <dl class="tiles" data-server={server !== null}>
      {server === null ? (
        <Tile
          label="Sessions"
          meaning={MEANINGS.connections}
          value={whole(sample.sessions.length)}
          more="listed"
        />
      ) : (
        <Tile
          label="Connections"
          meaning={MEANINGS.connections}
          value={whole(server.num_sessions)}
          more="open"
        />
      )}
      <Tile
        label="Running"
        value={whole(server?.num_running ?? active.length)}
        more={server === null ? undefined : `${server.num_waiting} in the queue`}
      />
      <Tile
        label="Tokens per second"
        meaning={MEANINGS.speed}
        value={or(recorder.server.at(time, "tokens_per_second"), one)}
      />
      <Tile
        label="Acceptance"
        meaning={MEANINGS.acceptance}
        value={or(quantile(rates, 0.5), share)}
        more="median of sessions"
      />
      <Tile
        label="Drafted per step"
        meaning={MEANINGS.drafted}
        value={or(recorder.server.at(time, "gamma"), one)}
      />
      {server !== null && (
        <>
          <Tile
            label="Step"
            meaning={MEANINGS.step}
            value={or(server.measured_step_ms, ms)}
            more={
              server.predicted_step_ms === null
                ? undefined
                : `${ms(server.predicted_step_ms)} predicted`
            }
          />
          <Tile
            label="Blocks in use"
            meaning={MEANINGS.blocks}
            value={
              server.num_blocks === 0
                ? "–"
                : share(
                    (server.num_blocks - server.num_free_blocks - server.num_cached_blocks) /
                      server.num_blocks,
                  )
            }
            more={`${whole(server.num_cached_blocks)} cached`}
          />
        </>
      )}
      <Tile
        label="Ledger"
        meaning={MEANINGS.ledger}
        value={or(sample.ledger_level_ms, ms)}
        more={
          sample.ledger_capacity_ms === null
            ? "over plain decoding"
            : `of ${ms(sample.ledger_capacity_ms)} over plain decoding`
        }
      />
    </dl>
  );
}

function Tile(props: {
  label: string;
  value: string;
  more?: string | undefined;
  meaning?: string;
}) {
  return (
    <div class="tile" title={props.meaning}>
      <dt>{props.label}</dt>
      <dd>
        {props.value}
        {props.more !== undefined && <small>{props.more}</small>}
      </dd>
    </div>
  );
}

type Column = (typeof SERVER_COLUMNS)[number];

const SPEED: Series[] = [{ label: "tokens/s", colour: "var(--series-1)" }];
const STAGES: Series[] = [
  { label: "verify", colour: "var(--series-1)" },
  { label: "draft", colour: "var(--series-2)" },
  { label: "sample", colour: "var(--series-3)" },
  { label: "other", colour: "var(--series-4)" },
  { label: "predicted", colour: "var(--text)", isLine: true, isDashed: true },
];
const ACCEPTANCE: Series[] = [
  { label: "best tenth", colour: "var(--series-4)", isDashed: true },
  { label: "median", colour: "var(--series-1)" },
  { label: "worst tenth", colour: "var(--series-5)", isDashed: true },
];
const GAMMA: Series[] = [{ label: "drafted per step", colour: "var(--series-3)" }];
const GATES: Series[] = [
  { label: "on", colour: "var(--series-1)" },
  { label: "probing", colour: "var(--series-2)" },
  { label: "off", colour: "var(--series-4)" },
];
const QUEUE: Series[] = [
  { label: "running", colour: "var(--series-1)" },
  { label: "waiting", colour: "var(--series-5)" },
];
const BLOCKS: Series[] = [
  { label: "in use", colour: "var(--series-1)" },
  { label: "cached", colour: "var(--series-4)" },
];
const LEDGER: Series[] = [{ label: "level", colour: "var(--series-5)" }];

export function Charts(props: { recorder: Recorder; view: View; hasServer: boolean }) {
  const { recorder, view, hasServer } = props;
  const data = (...columns: Column[]) => recorder.server.between(view.from, view.to, columns);
  return (
    <div class="charts">
      <Chart {...view} title="Throughput" series={SPEED} format={one} data={data("tokens_per_second")} />
      <Chart
        {...view}
        title="Step time"
        series={STAGES}
        isStacked
        format={ms}
        data={data("verify_ms", "draft_ms", "sample_ms", "other_ms", "predicted_step_ms")}
      />
      <Chart
        {...view}
        title="Acceptance over sessions"
        series={ACCEPTANCE}
        format={share}
        max={1}
        data={data("acceptance_high", "acceptance_middle", "acceptance_low")}
      />
      <Chart {...view} title="Draft length" series={GAMMA} format={one} data={data("gamma")} />
      <Chart
        {...view}
        title="Gates of running sessions"
        series={GATES}
        isStacked
        isCount
        format={whole}
        data={data("gates_on", "gates_probing", "gates_off")}
      />
      {hasServer && (
        <>
          <Chart
            {...view}
            title="Queue"
            series={QUEUE}
            isCount
            format={whole}
            data={data("running", "waiting")}
          />
          <Chart
            {...view}
            title="Blocks"
            series={BLOCKS}
            isStacked
            isCount
            format={whole}
            data={data("blocks_used", "blocks_cached")}
          />
        </>
      )}
      <Chart {...view} title="Ledger: cost over plain decoding" series={LEDGER} format={ms} data={data("ledger_ms")} />
    </div>
  );
}

const MOST_REASONS = 5;

/** Why speculation is on or off, over the sessions that run. */
export function Reasons({ sample }: { sample: TelemetrySample }) {
  const kinds = new Map<string, { gate: string; reason: string; count: number }>();
  for (const session of sample.sessions) {
    if (!session.active) continue;
    const key = `${session.gate} ${kindOfReason(session.reason)}`;
    const kind = kinds.get(key);
    if (kind) kind.count += 1;
    else kinds.set(key, { gate: session.gate, reason: session.reason, count: 1 });
  }
  if (kinds.size === 0) return null;
  const most = [...kinds.values()].sort((a, b) => b.count - a.count).slice(0, MOST_REASONS);
  return (
    <ul class="reasons" aria-label="Why speculation is on or off">
      {most.map(({ gate, reason, count }) => (
        <li key={reason}>
          <b>{count}</b> <span class="gate" data-gate={gate}>{gate}</span>
          <span>{count > 1 ? `such as: ${causeAlone(reason)}` : causeAlone(reason)}</span>
        </li>
      ))}
    </ul>
  );
}
