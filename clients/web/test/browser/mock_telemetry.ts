/** A server's telemetry without a server: many sessions whose numbers wander. */
import type { Page } from "playwright-core";
import type { SessionTelemetry, TelemetrySample } from "../../src/protocol.generated";

export interface MockOptions {
  readonly numSessions: number;
  /** Milliseconds between samples; what was subscribed to if absent. */
  readonly everyMs?: number;
  readonly lane?: (index: number) => string | null;
  readonly reason?: (index: number) => string;
  /** Refuse scope `server`, as for a browser without the admin key. */
  readonly isAdmin?: boolean;
}

/** Answers the page's socket; call before the page is opened. */
export async function mockTelemetry(page: Page, options: MockOptions): Promise<{ sent: number }> {
  const counter = { sent: 0 };
  await page.route("**/v1/models", (route) =>
    route.fulfill({ json: { object: "list", data: [{ id: "mock-model", max_model_len: 4096 }] } }),
  );
  await page.routeWebSocket("**/v1/responses", (socket) => {
    let timer: ReturnType<typeof setInterval> | undefined;
    const sessions = new Wandering(options);
    socket.onMessage((message) => {
      const event = JSON.parse(String(message)) as {
        type: string;
        scope: "server" | "session";
        interval_ms: number;
        stream_id: string;
      };
      clearInterval(timer);
      if (event.type !== "telemetry.subscribe") return;
      if (event.scope === "server" && options.isAdmin === false) {
        socket.send(
          JSON.stringify({
            type: "error",
            status: 403,
            sequence_number: null,
            stream_id: event.stream_id,
            error: {
              type: "permission_error",
              code: "permission_denied",
              message: "scope `server` needs the admin key",
              param: "scope",
            },
          }),
        );
        return;
      }
      timer = setInterval(() => {
        counter.sent += 1;
        socket.send(
          JSON.stringify({
            ...sessions.sample(counter.sent, event.scope),
            stream_id: event.stream_id,
          }),
        );
      }, options.everyMs ?? event.interval_ms);
    });
    socket.onClose(() => clearInterval(timer));
  });
  return counter;
}

class Wandering {
  private readonly sessions: SessionTelemetry[];
  private readonly start = Date.now() / 1000;
  private seed = 1;

  constructor(private readonly options: MockOptions) {
    this.sessions = Array.from({ length: options.numSessions }, (_, index) => this.session(index));
  }

  sample(number: number, scope: "server" | "session"): TelemetrySample {
    for (const session of this.sessions) this.advance(session);
    const active = this.sessions.filter((session) => session.active);
    const step = 9 + active.length / 12 + this.random();
    return {
      type: "telemetry.sample",
      sequence_number: number,
      scope,
      time: this.start + number / 2,
      sessions: this.sessions,
      ledger_level_ms: Math.max(0, 3 * Math.sin(number / 9)),
      ledger_capacity_ms: 50,
      server:
        scope === "session"
          ? null
          : {
              num_sessions: this.sessions.length,
              num_running: active.length,
              num_waiting: Math.round(3 + 3 * Math.sin(number / 7)),
              num_blocks: 4096,
              num_free_blocks: 1200,
              num_cached_blocks: 900 + Math.round(200 * Math.sin(number / 11)),
              num_rows: active.length * 3,
              tokens_per_second: active.reduce((sum, each) => sum + (each.tokens_per_second ?? 0), 0),
              draft_ms: step * 0.2,
              verify_ms: step * 0.66,
              sample_ms: step * 0.08,
              other_ms: step * 0.06,
              measured_step_ms: step,
              predicted_step_ms: step * 0.97,
              break_even_rows: 640,
            },
    };
  }

  private session(index: number): SessionTelemetry {
    return {
      session_id: `sess_${(0x5eed0000 + index * 7919).toString(16)}`,
      lane: this.options.lane?.(index) ?? (index % 3 === 0 ? "chat" : null),
      active: index % 11 !== 10,
      gate: index % 9 === 8 ? "off" : index % 17 === 16 ? "probing" : "on",
      reason:
        this.options.reason?.(index) ??
        (index % 9 === 8
          ? "off: too little was accepted, next probe in 128 tokens; acceptance 0.31 over the last 64 tested"
          : "on: the draft model drafts 4 tokens; acceptance 0.72 over the last 64 tested"),
      drafter: index % 4 === 0 ? "ngram" : "model",
      acceptance: 0.45 + 0.5 * this.random(),
      accepted_per_position: [40, 28, 17, 9],
      examined_per_position: [52, 40, 28, 17],
      passed_per_position: [40, 28, 17, 9],
      gamma_histogram: [10, 8, 30, 44, 90],
      tokens_per_step: 2 + this.random(),
      tokens_per_second: 8 + 12 * this.random(),
      time_to_first_token_ms: 30 + 90 * this.random(),
      draft_ms: 0.4,
      verify_ms: 1.4,
      sample_ms: 0.1,
      other_ms: 0.1,
    };
  }

  private advance(session: SessionTelemetry): void {
    if (!session.active) return;
    const wander = (value: number | null, low: number, high: number): number =>
      Math.min(high, Math.max(low, (value ?? low) + (this.random() - 0.5) * (high - low) * 0.12));
    session.acceptance = wander(session.acceptance, 0.3, 0.98);
    session.tokens_per_second = wander(session.tokens_per_second, 4, 26);
    session.tokens_per_step = wander(session.tokens_per_step, 1.1, 4.4);
    const drafted = Math.min(4, Math.floor(this.random() * 3 + session.acceptance * 2.4));
    session.gamma_histogram[drafted] = (session.gamma_histogram[drafted] ?? 0) + 1;
    session.draft_ms = 0.3 + 0.3 * this.random();
    session.verify_ms = 1.1 + 0.5 * this.random();
  }

  /** The same numbers in every run. */
  private random(): number {
    this.seed = (this.seed * 48271) % 0x7fffffff;
    return this.seed / 0x7fffffff;
  }
}
