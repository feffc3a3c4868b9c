/** One session: why its gate is where it is, its past, and how deep its drafts reach. */
import { useEffect, useRef } from "preact/hooks";
import { reasonAlone } from "../chat/measures";
import { IconButton } from "../shell/icons";
import { Chart, type Series } from "./chart";
import type { TelemetrySample } from "../protocol.generated";
import { ms, nameOf, one, or, share, two } from "./format";
import type { View } from "./overview";
import { type SESSION_COLUMNS, type SessionHistory, keyOf } from "./recorder";

const SPEED: Series[] = [{ label: "tokens/s", colour: "var(--series-1)" }];
const ACCEPTANCE: Series[] = [{ label: "acceptance", colour: "var(--series-1)" }];
const DRAFTS: Series[] = [
  { label: "drafted", colour: "var(--series-3)" },
  { label: "tokens/step", colour: "var(--series-1)" },
];
const STAGES: Series[] = [
  { label: "verify", colour: "var(--series-1)" },
  { label: "draft", colour: "var(--series-2)" },
  { label: "sample", colour: "var(--series-3)" },
  { label: "other", colour: "var(--series-4)" },
];

/** sample: what is shown, which in a pause is not the newest. */
export function SessionDetail(props: {
  history: SessionHistory;
  sample: TelemetrySample;
  view: View;
  onClose: () => void;
}) {
  const { history, sample, view } = props;
  const session = sample.sessions.find((each) => keyOf(each) === history.key) ?? history.latest;
  const changes = history.changes.filter((change) => change.time <= sample.time).toReversed();
  const name = nameOf(session);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus(), [history.key]);
  const data = (...columns: (typeof SESSION_COLUMNS)[number][]) =>
    history.ring.between(view.from, view.to, columns);
  return (
    <aside class="detail" aria-label="Session detail">
      <header>
        <h2 ref={heading} tabIndex={-1}>
          <code>{name.connection}</code> {name.lane}
        </h2>
        <IconButton icon="close" label="Close the detail" onClick={props.onClose} />
      </header>
      <p class="detail-reason">
        <span class="gate" data-gate={session.gate}>
          {session.gate}
        </span>{" "}
        {reasonAlone(session.reason)}
      </p>
      <dl class="facts">
        <Fact label="State" value={session.active ? "answering" : "idle"} />
        <Fact label="Drafter" value={session.drafter} />
        <Fact label="Acceptance" value={or(session.acceptance, share)} />
        <Fact label="Drafted per step" value={or(history.ring.at(sample.time, "gamma"), one)} />
        <Fact label="Tokens per step" value={or(session.tokens_per_step, two)} />
        <Fact label="Tokens per second" value={or(session.tokens_per_second, one)} />
        <Fact label="First token" value={or(session.time_to_first_token_ms, ms)} />
        <Fact label="Connection" value={session.session_id} />
      </dl>
      <Chart {...view} heading="h3" height={110} title="Speed" series={SPEED} format={one} data={data("tokens_per_second")} />
      <Chart
        {...view}
        heading="h3"
        height={110}
        title="Acceptance"
        series={ACCEPTANCE}
        format={share}
        max={1}
        data={data("acceptance")}
      />
      <Chart
        {...view}
        heading="h3"
        height={110}
        title="Draft length and tokens per step"
        series={DRAFTS}
        format={one}
        data={data("gamma", "tokens_per_step")}
      />
      <Chart
        {...view}
        heading="h3"
        height={110}
        title="Its share of a step"
        series={STAGES}
        isStacked
        format={ms}
        data={data("verify_ms", "draft_ms", "sample_ms", "other_ms")}
      />
      <Bars
        title="Accepted, by position in the draft"
        rows={session.examined_per_position.map((examined, position) => {
          const accepted = session.accepted_per_position[position] ?? 0;
          return {
            label: String(position + 1),
            part: examined === 0 ? 0 : accepted / examined,
            text: `${accepted} of ${examined}`,
          };
        })}
      />
      <Bars title="Steps, by number drafted" rows={histogramRows(session.gamma_histogram)} />
      <section>
        <h3>Gate</h3>
        <ol class="gate-changes">
          {changes.map((change) => (
            <li key={change.time}>
              <time>{new Date(change.time * 1000).toLocaleTimeString()}</time>
              <span class="gate" data-gate={change.gate}>
                {change.gate}
              </span>
              <span>{reasonAlone(change.reason)}</span>
            </li>
          ))}
        </ol>
      </section>
    </aside>
  );
}

function Fact({ label, value }: { label: string; value: string }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function histogramRows(histogram: readonly number[]): BarRow[] {
  const total = histogram.reduce((sum, count) => sum + count, 0);
  return histogram.map((count, drafted) => ({
    label: String(drafted),
    part: total === 0 ? 0 : count / total,
    text: String(count),
  }));
}

interface BarRow {
  readonly label: string;
  readonly part: number;
  readonly text: string;
}

function Bars({ title, rows }: { title: string; rows: readonly BarRow[] }) {
  if (rows.length === 0) return null;
  return (
    <section class="bars">
      <h3>{title}</h3>
      <table>
        <tbody>
          {rows.map((row) => (
            <tr key={row.label}>
              <th scope="row">{row.label}</th>
              <td>
                <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
                  <rect width="100" height="8" class="bar-ground" />
                  <rect width={row.part * 100} height="8" class="bar-part" />
                </svg>
              </td>
              <td class="number">{row.text}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
