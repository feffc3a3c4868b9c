/** One session: why its gate is where it is, its past, and how deep its drafts reach. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { causeAlone, reasonAlone } from "../chat/measures";
import { CopyButton } from "../shell/copy_button";
import { IconButton } from "../shell/icons";
import { Chart, type Series } from "./chart";
import type { TelemetrySample } from "../protocol.generated";
import { clock, gateOf, isId, ms, nameOf, one, or, share, shortId, stateOf, two } from "./format";
import { MEANINGS } from "./meanings";
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

/** From here on it stands beside the table; as in `telemetry.css`. */
const BESIDE = "(min-width: 1260px)";

/** sample: what is shown, which in a pause is not the newest. titleOf: this browser's own name of a
 * lane. */
export function SessionDetail(props: {
  history: SessionHistory;
  sample: TelemetrySample;
  view: View;
  titleOf: (lane: string) => string | null;
  onClose: () => void;
}) {
  const { history, sample, view } = props;
  const session = sample.sessions.find((each) => keyOf(each) === history.key) ?? history.latest;
  const changes = history.changes.filter((change) => change.time <= sample.time).toReversed();
  const name = nameOf(session, props.titleOf);
  const frame = useRef<HTMLElement>(null);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    // Below the table it would open out of sight.
    const isBeside = matchMedia(BESIDE).matches;
    heading.current?.focus({ preventScroll: !isBeside });
    if (!isBeside) frame.current?.scrollIntoView({ block: "start" });
  }, [history.key]);
  const data = (...columns: (typeof SESSION_COLUMNS)[number][]) =>
    history.ring.between(view.from, view.to, columns);
  return (
    <aside class="detail" aria-label="Session detail" ref={frame}>
      <header>
        <h2 ref={heading} tabIndex={-1} title={name.whole}>
          <code>{name.connection}</code> {name.lane}
        </h2>
        <IconButton icon="close" label="Close the detail" onClick={props.onClose} />
      </header>
      <p class="detail-reason" title={session.reason}>
        <span class="gate" data-gate={session.active ? session.gate : undefined}>
          {gateOf(session)}
        </span>{" "}
        {causeAlone(session.reason)}
      </p>
      <dl class="facts">
        <Fact
          label="State"
          meaning={session.active ? undefined : MEANINGS.done}
          value={stateOf(session)}
        />
        <Fact label="Drafter" value={session.drafter} />
        <Fact
          label="Recent acceptance"
          meaning={MEANINGS.acceptance}
          value={or(session.acceptance, share)}
        />
        <Fact
          label="Drafted per step"
          meaning={MEANINGS.drafted}
          value={or(history.ring.at(sample.time, "gamma"), one)}
        />
        <Fact
          label="Tokens per step"
          meaning={MEANINGS.perStep}
          value={or(session.tokens_per_step, two)}
        />
        <Fact
          label="Tokens per second"
          meaning={MEANINGS.speed}
          value={or(session.active ? session.tokens_per_second : null, one)}
        />
        <Fact
          label="First token"
          meaning={MEANINGS.first}
          value={or(session.time_to_first_token_ms, ms)}
        />
        <Fact
          label="Connection"
          meaning={session.session_id}
          value={<code>{name.connection}…</code>}
          more={<CopyButton text={session.session_id} label="Copy the connection's id" />}
        />
        {session.lane !== null && isId(session.lane) && (
          <Fact
            label="Lane"
            meaning={session.lane}
            value={<code>{shortId(session.lane)}…</code>}
            more={<CopyButton text={session.lane} label="Copy the lane's id" />}
          />
        )}
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
        title="Passed, by position in the draft"
        rows={session.examined_per_position.map((examined, position) => {
          const passed = session.passed_per_position[position] ?? 0;
          return {
            label: String(position + 1),
            part: examined === 0 ? 0 : passed / examined,
            text: `${passed} of ${examined}`,
          };
        })}
      />
      <Bars title="Steps, by number drafted" rows={histogramRows(session.gamma_histogram)} />
      <section>
        <h3>Gate</h3>
        <ol class="gate-changes">
          {changes.map((change) => (
            <li key={change.time}>
              <time>{clock(change.time)}</time>
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

function Fact(props: {
  label: string;
  value: ComponentChildren;
  meaning?: string | undefined;
  more?: ComponentChildren;
}) {
  return (
    <div title={props.meaning}>
      <dt>{props.label}</dt>
      <dd>
        {props.value}
        {props.more}
      </dd>
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
