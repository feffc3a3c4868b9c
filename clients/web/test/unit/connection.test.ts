import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { delayBefore } from "../../src/wire/connection";
import { endpointOf, subprotocols } from "../../src/wire/endpoint";
import { FakeServer } from "./fakes";

describe("addresses", () => {
  test.each([
    ["http://127.0.0.1:8765/", "ws://127.0.0.1:8765/v1/responses"],
    ["https://host/llm/", "wss://host/llm/v1/responses"],
  ])("the socket of %s", (page, socket) => {
    expect(endpointOf(page).socket).toBe(socket);
  });

  test("a key is offered in base64url, without padding, after the encoding", () => {
    expect(subprotocols(null)).toEqual(["paceline.v1.json"]);
    expect(subprotocols("schlüssel?>")).toEqual([
      "paceline.v1.json",
      "paceline.key.c2NobMO8c3NlbD8-",
    ]);
  });
});

test("delays double up to a limit and are spread", () => {
  expect([0, 1, 2, 3, 4, 5, 6].map((attempt) => delayBefore(attempt, 0.5))).toEqual([
    0, 250, 500, 1000, 2000, 4000, 5000,
  ]);
  expect(delayBefore(3, 0)).toBe(750);
  expect(delayBefore(3, 1)).toBe(1250);
});

describe("a connection", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  test("opens, and knows the served model", async () => {
    const server = new FakeServer();
    const connection = await server.connect();
    await vi.advanceTimersByTimeAsync(0);
    expect(connection.state.value).toBe("open");
    expect(connection.model.value).toEqual({ id: "org/model", maxTokens: 2048 });
  });

  test("comes back when the socket is gone, and counts", async () => {
    const server = new FakeServer();
    const connection = await server.connect();
    await vi.advanceTimersByTimeAsync(0);
    let losses = 0;
    connection.onLoss(() => (losses += 1));
    server.isUp = false;
    server.socket.close();
    expect(connection.state.value).toBe("lost");
    expect(connection.send({ type: "response.cancel" })).toBe(false);
    await vi.advanceTimersByTimeAsync(20_000);
    expect(server.sockets).toHaveLength(1);
    server.isUp = true;
    await vi.advanceTimersByTimeAsync(6000);
    expect(connection.state.value).toBe("open");
    expect(connection.epoch).toBe(2);
    expect(losses).toBe(1);
  });

  test("asks for a key and tries no further until it has one", async () => {
    const server = new FakeServer();
    server.status = 401;
    const connection = await server.connect();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(connection.state.value).toBe("needs_key");
    expect(server.keys).toEqual([undefined]);
    server.status = 200;
    connection.useKey("k");
    await vi.advanceTimersByTimeAsync(0);
    expect(connection.state.value).toBe("open");
    expect(server.keys.at(-1)).toBe("Bearer k");
    expect(server.socket.protocols).toContain("paceline.key.aw");
  });

  test("knows that its server is leaving, by what it said or by its close code", async () => {
    const server = new FakeServer();
    const connection = await server.connect();
    await vi.advanceTimersByTimeAsync(0);
    expect(connection.isServerLeaving.value).toBe(false);
    server.socket.receive({
      type: "error",
      status: 503,
      sequence_number: null,
      error: { type: "t", code: "server_shutting_down", message: "later", param: null },
    });
    expect(connection.isServerLeaving.value).toBe(true);
    server.socket.close();
    await vi.advanceTimersByTimeAsync(6000);
    expect(connection.state.value).toBe("open");
    expect(connection.isServerLeaving.value).toBe(false);
    server.socket.close(1012);
    expect(connection.isServerLeaving.value).toBe(true);
    await vi.advanceTimersByTimeAsync(6000);
    expect(connection.isServerLeaving.value).toBe(false);
    server.socket.close(1006);
    expect(connection.isServerLeaving.value).toBe(false);
  });

  test("hurries when attention is back", async () => {
    const server = new FakeServer();
    server.isUp = false;
    const connection = await server.connect();
    await vi.advanceTimersByTimeAsync(60_000);
    server.isUp = true;
    connection.hurry();
    await vi.advanceTimersByTimeAsync(0);
    expect(connection.state.value).toBe("open");
  });

  test("stays closed", async () => {
    const server = new FakeServer();
    const connection = await server.connect();
    await vi.advanceTimersByTimeAsync(0);
    connection.close();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(connection.state.value).toBe("closed");
    expect(server.sockets).toHaveLength(1);
  });
});
