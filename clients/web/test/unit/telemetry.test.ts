import { describe, expect, test } from "vitest";
import type { SessionTelemetry, TelemetrySample } from "../../src/protocol.generated";
import { ticksUpTo } from "../../src/telemetry/axis";
import { growth, kindOfReason, meanOf, quantile } from "../../src/telemetry/changes";
import { clock, gateOf, nameOf, one, stateOf } from "../../src/telemetry/format";
import { Recorder, SERVER_COLUMNS } from "../../src/telemetry/recorder";
import { Ring } from "../../src/telemetry/ring";
import { FakeServer, settle } from "./fakes";

describe("a ring", () => {
  test("keeps the newest samples in order", () => {
    const ring = new Ring(["a", "b"], 3);
    for (let time = 1; time <= 5; time += 1) ring.push(time, [time * 10, null]);
    expect(ring.length).toBe(3);
    expect(ring.newest).toBe(5);
    expect(ring.between(0, 9, ["a", "b"])).toEqual([
      [3, 4, 5],
      [30, 40, 50],
      [null, null, null],
    ]);
  });

  test("gives a window, both ends included", () => {
    const ring = new Ring(["a"], 10);
    for (let time = 1; time <= 9; time += 1) ring.push(time, [time]);
    expect(ring.between(3, 5, ["a"])[0]).toEqual([3, 4, 5]);
    expect(ring.between(20, 30, ["a"])[0]).toEqual([]);
  });

  test("passes over times that don't grow", () => {
    const ring = new Ring(["a"], 4);
    ring.push(2, [1]);
    ring.push(2, [2]);
    ring.push(1, [3]);
    expect(ring.between(0, 9, ["a"])).toEqual([[2], [1]]);
  });

  test("gives what was known at a time", () => {
    const ring = new Ring(["a"], 3);
    for (let time = 1; time <= 4; time += 1) ring.push(time, [time === 3 ? null : time * 10]);
    expect([1, 2, 2.5, 3, 4, 9].map((time) => ring.at(time, "a"))).toEqual([
      null,
      20,
      20,
      null,
      40,
      40,
    ]);
  });

  test("knows its columns", () => {
    expect(() => new Ring(["a"], 4).between(0, 1, ["b"])).toThrow("no column b");
  });
});

describe("changes", () => {
  test("are the growth of counters", () => {
    expect(growth([1, 2], [3, 2, 4])).toEqual([2, 0, 4]);
  });

  test("after a restart are all that was counted since", () => {
    expect(growth([5, 5], [1, 6])).toEqual([1, 6]);
  });

  test("means and quantiles", () => {
    expect(meanOf([1, 0, 3])).toBe(1.5);
    expect(meanOf([0, 0])).toBeNull();
    expect(quantile([3, 1, 2], 0.5)).toBe(2);
    expect(quantile([0, 10], 0.25)).toBe(2.5);
    expect(quantile([], 0.5)).toBeNull();
  });

  test("reasons that differ in numbers alone are of one kind", () => {
    expect(kindOfReason("off: next probe in 64 tokens; acceptance 0.31 over the last 64 tested")).toBe(
      kindOfReason("off: next probe in 128 tokens"),
    );
    expect(kindOfReason("off: a")).not.toBe(kindOfReason("off: b"));
  });
});

const SESSION: SessionTelemetry = {
  session_id: "sess_1",
  lane: null,
  active: true,
  gate: "on",
  reason: "well",
  drafter: "model",
  acceptance: 0.8,
  accepted_per_position: [4],
  examined_per_position: [5],
  passed_per_position: [4],
  gamma_histogram: [0, 0, 10],
  tokens_per_step: 2.2,
  tokens_per_second: 50,
  time_to_first_token_ms: 20,
  draft_ms: 1,
  verify_ms: 4,
  sample_ms: 0.5,
  other_ms: 0.5,
};

const SERVER: NonNullable<TelemetrySample["server"]> = {
  num_sessions: 1,
  num_running: 1,
  num_waiting: 0,
  num_blocks: 100,
  num_free_blocks: 50,
  num_cached_blocks: 10,
  num_rows: 4,
  tokens_per_second: 50,
  draft_ms: 1,
  verify_ms: 4,
  sample_ms: 0.5,
  other_ms: 0.5,
  measured_step_ms: 6,
  predicted_step_ms: 6,
  break_even_rows: null,
};

function sample(time: number, sessions: SessionTelemetry[]): TelemetrySample {
  return {
    type: "telemetry.sample",
    sequence_number: 0,
    scope: "server",
    time,
    sessions,
    ledger_level_ms: 0,
    ledger_capacity_ms: 50,
    server: null,
  };
}

describe("an axis", () => {
  test("ends at or above what is drawn, in few round steps", () => {
    expect(ticksUpTo(17.9, 4)).toEqual([0, 5, 10, 15, 20]);
    expect(ticksUpTo(17.9, 3)).toEqual([0, 10, 20]);
    expect(ticksUpTo(20, 4)).toEqual([0, 5, 10, 15, 20]);
    expect(ticksUpTo(1, 4)).toEqual([0, 0.5, 1]);
    expect(ticksUpTo(0, 4)).toEqual([0, 1]);
    for (let max = 0.37; max < 1e6; max *= 1.07) {
      for (const most of [1, 3, 4]) {
        const ticks = ticksUpTo(max, most);
        const top = ticks.at(-1) as number;
        expect(top).toBeGreaterThanOrEqual(max);
        expect(ticks.length).toBeLessThanOrEqual(most + 1);
        expect(ticksUpTo(top, most)).toEqual(ticks); // what the scale's end is made of
      }
    }
  });

  test("says nothing twice", () => {
    for (let max = 1; max < 1e4; max *= 1.07) {
      const labels = ticksUpTo(max, 4).map(one);
      expect(new Set(labels).size).toBe(labels.length);
    }
  });

  test("of counts has whole steps alone", () => {
    expect(ticksUpTo(1, 4, true)).toEqual([0, 1]);
    expect(ticksUpTo(3, 4, true)).toEqual([0, 1, 2, 3]);
    expect(ticksUpTo(7, 4, true)).toEqual([0, 2, 4, 6, 8]);
  });
});

test("times of day are the same everywhere, in 24 hours", () => {
  expect(clock(1_700_000_000)).toMatch(/^\d\d:\d\d:\d\d$/);
});

test("of a session that rests it is said how things were", () => {
  expect([stateOf(SESSION), gateOf(SESSION)]).toEqual(["answering", "on"]);
  const rests = { ...SESSION, active: false };
  expect([stateOf(rests), gateOf(rests)]).toEqual(["done", "was on"]);
});

describe("a session's name", () => {
  const lane = "65c1f04bd1c2a9e07b3341aa";
  const session = { ...SESSION, session_id: "sess_0123456789abcdef0123456789abcdef" };

  test("is short, and the whole is kept for a hint", () => {
    expect(nameOf({ ...session, lane })).toEqual({
      connection: "01234567",
      lane: "65c1f04b…",
      whole: `${session.session_id}, lane ${lane}`,
    });
    expect(nameOf(session)).toMatchObject({ lane: "", whole: session.session_id });
  });

  test("that people gave stays as it is", () => {
    for (const given of ["chat", "completion of main.py", "deadbeef", "person 12"]) {
      expect(nameOf({ ...session, lane: given }).lane).toBe(given);
    }
  });

  test("is the title of this browser's own conversation", () => {
    const titleOf = (asked: string): string | null => (asked === lane ? "Capitals" : null);
    expect(nameOf({ ...session, lane }, titleOf).lane).toBe("Capitals");
    expect(nameOf({ ...session, lane: "other" }, titleOf).lane).toBe("other");
  });
});

async function recorder(): Promise<{ recorder: Recorder; server: FakeServer }> {
  const server = new FakeServer();
  const made = new Recorder(await server.connect());
  await settle();
  return { recorder: made, server };
}

describe("a recorder", () => {
  test("takes the draft length from what was added to the histogram", async () => {
    const { recorder: made } = await recorder();
    made.record(sample(1, [SESSION]));
    made.record(sample(2, [{ ...SESSION, gamma_histogram: [0, 0, 10, 0, 6] }]));
    expect(made.sessions.get("sess_1/")?.gamma).toBe(4);
    expect(made.server.between(2, 2, ["gamma"])[1]).toEqual([4]);
  });

  test("shows the server's speed as it is told", async () => {
    const { recorder: made } = await recorder();
    const told = (time: number, tokens_per_second: number | null): TelemetrySample => ({
      ...sample(time, [SESSION]),
      server: { ...SERVER, tokens_per_second },
    });
    made.record(told(1, null));
    made.record(told(2, 50));
    made.record(told(3, 70));
    expect(made.server.between(1, 3, ["tokens_per_second"])[1]).toEqual([null, 50, 70]);
    made.record(sample(4, [SESSION, { ...SESSION, session_id: "sess_2" }]));
    expect(made.server.at(4, "tokens_per_second")).toBe(100); // without the admin key, one's own
  });

  test("notes gates only when they change", async () => {
    const { recorder: made } = await recorder();
    made.record(sample(1, [SESSION]));
    made.record(sample(2, [{ ...SESSION, reason: "better" }]));
    made.record(sample(3, [{ ...SESSION, gate: "off", reason: "bad" }]));
    expect(made.sessions.get("sess_1/")?.changes).toEqual([
      { time: 1, gate: "on", reason: "better" },
      { time: 3, gate: "off", reason: "bad" },
    ]);
  });

  test("forgets sessions that are gone, and never holds more than its bounds", async () => {
    const { recorder: made } = await recorder();
    for (let time = 0; time < 4000; time += 1) {
      const session = { ...SESSION, session_id: `sess_${time}` };
      made.record(sample(time / 2, [session]));
    }
    expect(made.sessions.size).toBeLessThanOrEqual(512);
    expect(made.server.length).toBe(1800);
    expect(made.server.names).toEqual(SERVER_COLUMNS);
    made.record(sample(2_000_000, [SESSION]));
    expect([...made.sessions.keys()]).toEqual(["sess_1/"]);
  });

  test("asks for the server, and settles for the session without the admin key", async () => {
    const { recorder: made, server } = await recorder();
    const stop = made.watch();
    expect(server.socket.sent.at(-1)).toMatchObject({ type: "telemetry.subscribe", scope: "server" });
    server.socket.receive({
      type: "error",
      status: 403,
      sequence_number: null,
      stream_id: "telemetry",
      error: { type: "t", code: "permission_denied", message: "no", param: null },
    });
    expect(server.socket.sent.at(-1)).toMatchObject({ scope: "session" });
    expect(made.access.value).toBe("session");
    stop();
    expect(server.socket.sent.at(-1)).toMatchObject({
      type: "telemetry.unsubscribe",
      scope: "session",
    });
  });

  test("subscribes again after a reconnect, while somebody looks", async () => {
    const { recorder: made, server } = await recorder();
    made.watch();
    server.socket.close();
    await settle();
    await new Promise((resolve) => setTimeout(resolve, 300));
    await settle();
    expect(server.sockets).toHaveLength(2);
    expect(server.socket.sent).toHaveLength(1);
  });

  test("says why there is nothing", async () => {
    const { recorder: made, server } = await recorder();
    made.watch();
    server.socket.receive({
      type: "error",
      status: 400,
      sequence_number: null,
      stream_id: "telemetry",
      error: { type: "t", code: "unsupported_value", message: "not served", param: null },
    });
    expect(made.access.value).toBe("refused");
    expect(made.problem.value).toBe("not served");
  });
});
