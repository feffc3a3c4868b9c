/** Live telemetry: the whole server for those who may see it, else this browser's own session. */
import { useEffect, useState } from "preact/hooks";
import type { TelemetrySample } from "../protocol.generated";
import { Icon } from "../shell/icons";
import { useServices } from "../shell/services";
import { whole } from "./format";
import { MEANINGS, Meanings } from "./meanings";
import { Charts, Reasons, Tiles, type View } from "./overview";
import type { Access } from "./recorder";
import { SessionDetail } from "./session_detail";
import { SessionsTable } from "./sessions_table";
import "./telemetry.css";

const WINDOWS = [
  { seconds: 60, label: "1 min" },
  { seconds: 5 * 60, label: "5 min" },
  { seconds: 15 * 60, label: "15 min" },
];

const SCOPES: Record<Access, string> = {
  unknown: "Asking the server",
  server: "All sessions of the server",
  session: "This browser's own session; all sessions need the admin key",
  refused: "The server sends no telemetry",
};

export default function TelemetryPage() {
  const { recorder, store } = useServices();
  const [windowS, setWindowS] = useState(60);
  const [frozen, setFrozen] = useState<TelemetrySample | null>(null);
  const [selected, setSelected] = useState<string | null>(null);
  useEffect(() => recorder.watch(), [recorder]);

  const latest = recorder.latest.value;
  const sample = frozen ?? latest;
  const view: View | null =
    sample === null ? null : { from: sample.time - windowS, to: sample.time };
  const history = selected === null ? undefined : recorder.sessions.get(selected);
  // The chat names a lane after its conversation, whose title this browser alone knows.
  const titleOf = (lane: string): string | null => store.conversation(lane)?.title ?? null;

  function closeDetail(): void {
    // Back to where it was opened, which may be far up on a phone.
    document.querySelector<HTMLElement>('.session-link[aria-expanded="true"]')?.focus();
    setSelected(null);
  }

  return (
    <main id="main" tabIndex={-1} class="telemetry">
      <div class="telemetry-head">
        <div>
          <h1>Telemetry</h1>
          <p>{recorder.problem.value ?? SCOPES[recorder.access.value]}</p>
        </div>
        <div class="telemetry-tools">
          <div class="segments" role="group" aria-label="Time window">
            {WINDOWS.map((each) => (
              <button
                key={each.seconds}
                type="button"
                aria-pressed={windowS === each.seconds}
                onClick={() => setWindowS(each.seconds)}
              >
                {each.label}
              </button>
            ))}
          </div>
          <button
            type="button"
            class="pause"
            aria-pressed={frozen !== null}
            disabled={latest === null}
            onClick={() => setFrozen(frozen === null ? latest : null)}
          >
            <Icon name={frozen === null ? "pause" : "play"} />
            {frozen === null ? "Pause" : "Paused: go on"}
          </button>
        </div>
      </div>
      {sample === null || view === null ? (
        <p class="telemetry-empty">
          {recorder.access.value === "refused" ? "Nothing to show." : "Waiting for the first sample."}
        </p>
      ) : (
        <div class="telemetry-body" data-detail={history !== undefined}>
          <div class="telemetry-main">
            <Tiles sample={sample} recorder={recorder} />
            <Reasons sample={sample} />
            <Charts recorder={recorder} view={view} hasServer={sample.server !== null} />
            <h2>
              Sessions{" "}
              <span class="count" title={MEANINGS.connections}>
                {whole(sample.sessions.length)} listed,{" "}
                {whole(sample.sessions.filter((session) => session.active).length)} answering
              </span>
              <span class="scroll-hint">scrolls sideways</span>
            </h2>
            {sample.sessions.length === 0 ? (
              <p class="telemetry-empty">No session has asked for anything yet.</p>
            ) : (
              <SessionsTable
                sample={sample}
                recorder={recorder}
                selected={selected}
                titleOf={titleOf}
                onSelect={setSelected}
              />
            )}
            <Meanings />
          </div>
          {history !== undefined && (
            <SessionDetail
              history={history}
              sample={sample}
              view={view}
              titleOf={titleOf}
              onClose={closeDetail}
            />
          )}
        </div>
      )}
    </main>
  );
}
