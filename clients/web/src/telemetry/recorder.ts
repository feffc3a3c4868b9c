/**
 * Subscribes to telemetry and keeps what the page draws, in memory that does not grow: the last
 * quarter of an hour, for a bounded number of sessions.
 */
import { signal } from "@preact/signals";
import type { ServerEvent, SessionTelemetry, TelemetrySample } from "../protocol.generated";
import type { Connection } from "../wire/connection";
import { growth, meanOf, quantile } from "./changes";
import { Ring } from "./ring";

export const INTERVAL_MS = 500;
export const LONGEST_WINDOW_S = 15 * 60;
const CAPACITY = (LONGEST_WINDOW_S * 1000) / INTERVAL_MS;
/** Sessions that are gone are forgotten first, then those that were quiet longest. */
const MAX_SESSIONS = 512;
const LANE = "telemetry";

export const SERVER_COLUMNS = [
  "tokens_per_second",
  "draft_ms",
  "verify_ms",
  "sample_ms",
  "other_ms",
  "predicted_step_ms",
  "running",
  "waiting",
  "blocks_used",
  "blocks_cached",
  "rows",
  "ledger_ms",
  "acceptance_low",
  "acceptance_middle",
  "acceptance_high",
  "gamma",
  "gates_on",
  "gates_probing",
  "gates_off",
] as const;

export const SESSION_COLUMNS = [
  "tokens_per_second",
  "acceptance",
  "gamma",
  "tokens_per_step",
  "draft_ms",
  "verify_ms",
  "sample_ms",
  "other_ms",
] as const;

/** A session's past. key: of its connection and lane. gamma: mean drafted in its latest steps. */
export interface SessionHistory {
  readonly key: string;
  readonly ring: Ring;
  latest: SessionTelemetry;
  gamma: number | null;
  /** Gate and reason when they changed, oldest first. */
  readonly changes: { time: number; gate: string; reason: string }[];
}

const MAX_CHANGES = 50;

export type Access = "unknown" | "server" | "session" | "refused";

export function keyOf(session: SessionTelemetry): string {
  return `${session.session_id}/${session.lane ?? ""}`;
}

export class Recorder {
  /** The newest sample; every other value here belongs to it. */
  readonly latest = signal<TelemetrySample | null>(null);
  readonly access = signal<Access>("unknown");
  readonly problem = signal<string | null>(null);
  readonly server = new Ring(SERVER_COLUMNS, CAPACITY);
  readonly sessions = new Map<string, SessionHistory>();
  private numWatchers = 0;

  constructor(private readonly connection: Connection) {
    connection.onEvent((event) => this.hear(event));
    connection.onOpen(() => {
      this.access.value = "unknown";
      if (this.numWatchers > 0) this.subscribe();
    });
  }

  /** Record while somebody looks; call what it returns to stop. */
  watch(): () => void {
    this.numWatchers += 1;
    if (this.numWatchers === 1) this.subscribe();
    return () => {
      this.numWatchers -= 1;
      if (this.numWatchers > 0) return;
      this.connection.send({
        type: "telemetry.unsubscribe",
        scope: this.access.peek() === "session" ? "session" : "server",
        stream_id: LANE,
      });
    };
  }

  /** Take a sample in; public for tests. */
  record(sample: TelemetrySample): void {
    const drafted: number[] = [];
    for (const session of sample.sessions) {
      const history = this.historyOf(session);
      const gamma = meanOf(growth(history.latest.gamma_histogram, session.gamma_histogram));
      history.gamma = gamma ?? (session.active ? history.gamma : null);
      if (session.active && history.gamma !== null) drafted.push(history.gamma);
      this.noteGate(history, session, sample.time);
      history.latest = session;
      history.ring.push(sample.time, [
        session.active ? session.tokens_per_second : null,
        session.acceptance,
        session.active ? history.gamma : null,
        session.active ? session.tokens_per_step : null,
        ...(session.active
          ? [session.draft_ms, session.verify_ms, session.sample_ms, session.other_ms]
          : [null, null, null, null]),
      ]);
    }
    this.recordServer(sample, drafted);
    this.evict(sample);
    this.latest.value = sample;
  }

  private recordServer(sample: TelemetrySample, drafted: readonly number[]): void {
    const { server } = sample;
    const active = sample.sessions.filter((session) => session.active);
    const rates = active.flatMap((each) => (each.acceptance === null ? [] : [each.acceptance]));
    const gates = (gate: string): number => active.filter((each) => each.gate === gate).length;
    const sum = (name: "draft_ms" | "verify_ms" | "sample_ms" | "other_ms"): number =>
      active.reduce((total, each) => total + each[name], 0);
    const speed =
      server === null
        ? active.reduce((total, each) => total + (each.tokens_per_second ?? 0), 0)
        : server.tokens_per_second;
    const isBusy = server === null ? active.length > 0 : server.num_running > 0;
    const whenBusy = (value: number | null): number | null => (isBusy ? value : null);
    this.server.push(sample.time, [
      speed,
      whenBusy(server?.draft_ms ?? sum("draft_ms")),
      whenBusy(server?.verify_ms ?? sum("verify_ms")),
      whenBusy(server?.sample_ms ?? sum("sample_ms")),
      whenBusy(server?.other_ms ?? sum("other_ms")),
      whenBusy(server?.predicted_step_ms ?? null),
      server?.num_running ?? active.length,
      server?.num_waiting ?? null,
      server === null
        ? null
        : server.num_blocks - server.num_free_blocks - server.num_cached_blocks,
      server?.num_cached_blocks ?? null,
      server?.num_rows ?? null,
      sample.ledger_level_ms,
      quantile(rates, 0.1),
      quantile(rates, 0.5),
      quantile(rates, 0.9),
      drafted.length === 0 ? null : drafted.reduce((a, b) => a + b, 0) / drafted.length,
      gates("on"),
      gates("probing"),
      gates("off"),
    ]);
  }

  private historyOf(session: SessionTelemetry): SessionHistory {
    const key = keyOf(session);
    let history = this.sessions.get(key);
    if (history === undefined) {
      history = {
        key,
        ring: new Ring(SESSION_COLUMNS, CAPACITY),
        latest: session,
        gamma: meanOf(session.gamma_histogram),
        changes: [],
      };
      this.sessions.set(key, history);
    }
    return history;
  }

  private noteGate(history: SessionHistory, session: SessionTelemetry, time: number): void {
    const last = history.changes.at(-1);
    if (last?.gate === session.gate) {
      last.reason = session.reason;
      return;
    }
    history.changes.push({ time, gate: session.gate, reason: session.reason });
    if (history.changes.length > MAX_CHANGES) history.changes.shift();
  }

  private evict(sample: TelemetrySample): void {
    const present = new Set(sample.sessions.map(keyOf));
    for (const [key, history] of this.sessions) {
      if (present.has(key)) continue;
      const isOld = sample.time - (history.ring.newest ?? 0) > LONGEST_WINDOW_S;
      if (isOld || this.sessions.size > MAX_SESSIONS) this.sessions.delete(key);
    }
    if (this.sessions.size <= MAX_SESSIONS) return;
    for (const [key, history] of this.sessions) {
      if (this.sessions.size <= MAX_SESSIONS) break;
      if (!history.latest.active) this.sessions.delete(key);
    }
  }

  private subscribe(scope: "server" | "session" = "server"): void {
    this.connection.send({
      type: "telemetry.subscribe",
      scope,
      interval_ms: INTERVAL_MS,
      stream_id: LANE,
    });
  }

  private hear(event: ServerEvent): void {
    if (event.type === "telemetry.sample") {
      this.access.value = event.scope;
      this.problem.value = null;
      if (this.numWatchers > 0) this.record(event);
    } else if (event.type === "error" && event.stream_id === LANE) {
      if (event.error.code === "permission_denied" && this.access.peek() === "unknown") {
        this.access.value = "session";
        this.subscribe("session");
      } else if (event.error.code !== "response_not_found") {
        this.access.value = "refused";
        this.problem.value = event.error.message;
      }
    }
  }
}
