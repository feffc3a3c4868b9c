import "fake-indexeddb/auto";
import { beforeEach, describe, expect, test } from "vitest";
import { Answering } from "../../src/chat/answering";
import { openDatabase } from "../../src/chat/database";
import type { MessageRecord } from "../../src/chat/records";
import { Store } from "../../src/chat/store";
import type { UnfinishedAnswer } from "../../src/chat/unfinished";
import { Lanes } from "../../src/wire/lanes";
import type { Connection } from "../../src/wire/connection";
import { FakeServer, SUMMARY, settle } from "./fakes";

const SILENT_TABS = { tell: () => {}, listen: () => {} };
let numDatabases = 0;

let server: FakeServer;
let connection: Connection;
let store: Store;
let answering: Answering;
let conversationId: string;

beforeEach(async () => {
  server = new FakeServer();
  connection = await server.connect();
  store = new Store(await openDatabase(`answering-${(numDatabases += 1)}`), SILENT_TABS);
  answering = new Answering(store, connection, new Lanes(connection));
  conversationId = store.create().id;
  await settle();
});

function branch(): MessageRecord[] {
  const conversation = store.conversation(conversationId);
  return conversation === null ? [] : store.branch(conversation).map((cell) => cell.peek());
}

function all(): MessageRecord[] {
  return [...store.messages(conversationId).values()];
}

/** Lose the socket and come back. */
async function reconnect(): Promise<void> {
  server.socket.close();
  await settle();
  await new Promise((resolve) => setTimeout(resolve, 300));
  await settle();
}

describe("a turn", () => {
  test("is asked, streamed and finished with the server's measures", () => {
    answering.ask(conversationId, "hello");
    expect(server.requests[0]).toMatchObject({
      stream_id: conversationId,
      input: [{ type: "message", role: "user", content: "hello" }],
      paceline: { include: ["tokens"] },
    });
    server.answer(["Hi", " there"], null);
    expect(branch().map((each) => [each.role, each.status, each.text])).toEqual([
      ["user", "done", "hello"],
      ["assistant", "streaming", "Hi there"],
    ]);
    server.end(conversationId, "resp_1_1", "completed", "Hi there");
    expect(branch()[1]).toMatchObject({ status: "done", summary: SUMMARY, model: "org/model" });
    expect(branch()[1]?.tokens.map((token) => token.text)).toEqual(["Hi", " there"]);
    expect(store.active?.title).toBe("hello");
  });

  test("continues after the previous response on the same connection", () => {
    answering.ask(conversationId, "one");
    server.answer(["1"]);
    answering.ask(conversationId, "two");
    expect(server.requests[1]).toMatchObject({
      previous_response_id: "resp_1_1",
      input: [{ type: "message", role: "user", content: "two" }],
    });
  });

  test("sends the items again on another connection", async () => {
    answering.ask(conversationId, "one");
    server.answer(["1"]);
    await reconnect();
    answering.ask(conversationId, "two");
    const request = server.requests[0];
    expect(request?.previous_response_id).toBeUndefined();
    expect(request?.input).toEqual([
      { type: "message", role: "user", content: "one" },
      { type: "message", role: "assistant", content: [{ type: "output_text", text: "1" }] },
      { type: "message", role: "user", content: "two" },
    ]);
  });

  test("sends the items again when the server forgot the previous response", () => {
    answering.ask(conversationId, "one");
    server.answer(["1"]);
    answering.ask(conversationId, "two");
    server.refuse("previous_response_not_found");
    expect(server.requests).toHaveLength(3);
    expect(server.requests[2]?.previous_response_id).toBeUndefined();
    expect(server.requests[2]?.input).toHaveLength(3);
  });

  test("is refused with the server's words", () => {
    answering.ask(conversationId, "hello");
    server.refuse("context_length_exceeded");
    expect(branch()[1]).toMatchObject({
      status: "failed",
      error:
        "Refused: context_length_exceeded. Shorten the message, or begin a new conversation.",
    });
    expect(answering.isBusy(conversationId)).toBe(false);
  });

  test("waits for a connection and is then sent, once", async () => {
    server.isUp = false;
    server.socket.close();
    answering.ask(conversationId, "hello");
    expect(branch()[1]?.status).toBe("waiting");
    server.isUp = true;
    connection.hurry();
    await settle();
    expect(server.requests).toHaveLength(1);
    server.answer(["Hi"]);
    expect(branch()[1]).toMatchObject({ status: "done", text: "Hi" });
  });

  test("is one at a time in a conversation", () => {
    answering.ask(conversationId, "one");
    answering.ask(conversationId, "two");
    expect(server.requests).toHaveLength(1);
    expect(branch()).toHaveLength(2);
  });
});

describe("a reload in mid-answer", () => {
  let unfinished: readonly UnfinishedAnswer[];

  /** The same tab's page, anew: over what the database and the tab's own storage hold. */
  async function open(database: string): Promise<void> {
    server = new FakeServer();
    connection = await server.connect();
    store = new Store(await openDatabase(database), SILENT_TABS, () => answering.messageIds);
    answering = new Answering(store, connection, new Lanes(connection), {
      read: () => unfinished,
      write: (answers) => (unfinished = answers),
    });
    await settle();
    await store.start();
    for (const id of answering.conversationsBefore) await store.load(id);
  }

  async function reload(database: string): Promise<void> {
    await settle();
    await open(database);
    await new Promise((resolve) => setTimeout(resolve, 350)); // other tabs could claim it
    await settle();
  }

  const name = (): string => `reload-${(numDatabases += 1)}`;

  beforeEach(() => {
    unfinished = [];
  });

  test("keeps what came, and begins the answer anew", async () => {
    const database = name();
    await open(database);
    conversationId = store.create().id;
    answering.ask(conversationId, "hello");
    server.answer(["Half of"], null);
    const half = branch()[1] as MessageRecord;
    store.keep(half);
    expect(unfinished).toEqual([{ conversationId, messageId: half.id }]);

    await reload(database);
    expect(server.requests).toHaveLength(1);
    server.answer(["The whole"]);
    expect(branch().map((each) => each.text)).toEqual(["hello", "The whole"]);
    expect(branch()[1]?.note).toContain("begun anew");
    expect(all().find((each) => each.text === "Half of")?.status).toBe("interrupted");
    expect(unfinished).toEqual([]);
  });

  test("before anything came asks once more, in the same place", async () => {
    const database = name();
    await open(database);
    conversationId = store.create().id;
    answering.ask(conversationId, "hello");
    await reload(database);
    expect(server.requests).toHaveLength(1);
    server.answer(["Hi"]);
    expect(all()).toHaveLength(2);
    expect(branch().map((each) => [each.role, each.text, each.status, each.note])).toEqual([
      ["user", "hello", "done", null],
      ["assistant", "Hi", "done", null],
    ]);
  });

  test("of another tab, or long ago, begins nothing", async () => {
    const database = name();
    await open(database);
    conversationId = store.create().id;
    answering.ask(conversationId, "hello");
    server.answer(["Half of"], null);
    store.keep(branch()[1] as MessageRecord);
    unfinished = []; // storage of a new tab
    await reload(database);
    await store.open(conversationId);
    await new Promise((resolve) => setTimeout(resolve, 350));
    expect(server.requests).toHaveLength(0);
    expect(branch()[1]).toMatchObject({ text: "Half of", status: "interrupted" });
  });

  test("and stopped at once, stays stopped", async () => {
    const database = name();
    await open(database);
    conversationId = store.create().id;
    answering.ask(conversationId, "hello");
    server.answer(["Half of"], null);
    store.keep(branch()[1] as MessageRecord);
    await settle();
    await open(database);
    answering.stop(branch()[1] as MessageRecord);
    await new Promise((resolve) => setTimeout(resolve, 350));
    expect(server.requests).toHaveLength(0);
    expect(branch()[1]).toMatchObject({ text: "Half of", status: "interrupted" });
  });
});

describe("stopping", () => {
  test("cancels on the server and keeps what was written", () => {
    answering.ask(conversationId, "hello");
    server.answer(["Half of"], null);
    const message = branch()[1] as MessageRecord;
    answering.stop(message);
    expect(server.socket.sent.at(-1)).toEqual({
      type: "response.cancel",
      stream_id: conversationId,
    });
    server.end(conversationId, "resp_1_1", "cancelled", "Half of");
    expect(branch()[1]).toMatchObject({ status: "cancelled", text: "Half of" });
  });

  test("before anything was sent needs no server", () => {
    server.isUp = false;
    server.socket.close();
    answering.ask(conversationId, "hello");
    answering.stop(branch()[1] as MessageRecord);
    expect(branch()[1]?.status).toBe("cancelled");
    expect(answering.isBusy(conversationId)).toBe(false);
  });

  test("too late does no harm", () => {
    answering.ask(conversationId, "hello");
    answering.stop(branch()[1] as MessageRecord);
    server.refuse("response_not_found");
    expect(answering.isBusy(conversationId)).toBe(true);
    server.answer(["All"]);
    expect(branch()[1]).toMatchObject({ status: "done", text: "All" });
  });
});

describe("other branches", () => {
  test("regenerating keeps the answer before as a version", () => {
    answering.ask(conversationId, "hello");
    server.answer(["first"]);
    answering.regenerate(branch()[1] as MessageRecord);
    server.answer(["second"]);
    expect(branch().map((each) => each.text)).toEqual(["hello", "second"]);
    const first = all().find((each) => each.text === "first") as MessageRecord;
    store.showBranch(conversationId, first.id);
    expect(branch().map((each) => each.text)).toEqual(["hello", "first"]);
  });

  test("editing asks in other words, after the same past", () => {
    answering.ask(conversationId, "one");
    server.answer(["1"]);
    answering.ask(conversationId, "two");
    server.answer(["2"]);
    answering.edit(branch()[2] as MessageRecord, "three");
    expect(server.requests[2]).toMatchObject({
      previous_response_id: "resp_1_1",
      input: [{ type: "message", role: "user", content: "three" }],
    });
    server.answer(["3"]);
    expect(branch().map((each) => each.text)).toEqual(["one", "1", "three", "3"]);
    expect(all()).toHaveLength(6);
  });
});

describe("a connection that breaks", () => {
  test("in mid-answer: what came is kept, and the answer begun anew", async () => {
    answering.ask(conversationId, "hello");
    server.answer(["Half of"], null);
    await reconnect();
    expect(server.requests).toHaveLength(1);
    server.answer(["The whole"]);
    expect(branch().map((each) => each.text)).toEqual(["hello", "The whole"]);
    expect(branch()[1]?.note).toContain("begun anew");
    expect(all().find((each) => each.text === "Half of")?.status).toBe("interrupted");
  });

  test("again and again: the user decides in the end", async () => {
    answering.ask(conversationId, "hello");
    for (let time = 0; time < 4; time += 1) {
      server.answer([`part ${time}`], null);
      await reconnect();
    }
    expect(answering.isBusy(conversationId)).toBe(false);
    expect(all().filter((each) => each.status === "interrupted")).toHaveLength(4);
  });

  test("a server that goes away: asked again on the next connection, not on this one", async () => {
    answering.ask(conversationId, "hello");
    server.refuse("server_shutting_down");
    expect(server.requests).toHaveLength(1);
    expect(branch()[1]?.status).toBe("waiting");
    await reconnect();
    expect(server.requests).toHaveLength(1);
    server.answer(["Hi"]);
    expect(branch()[1]).toMatchObject({ status: "done", text: "Hi" });
  });

  test("by a request that is too large: it is refused, and not sent for ever", async () => {
    const small = store.create().id;
    answering.ask(small, "hello");
    answering.ask(conversationId, "hello ".repeat(1000));
    server.socket.close(1009);
    await settle();
    await new Promise((resolve) => setTimeout(resolve, 300));
    await settle();
    expect(branch()[1]?.status).toBe("failed");
    expect(branch()[1]?.error).toContain("larger than a message to this server may be. Shorten");
    expect(server.requests.map((request) => request.stream_id)).toEqual([small]);
  });

  test("each time before anything comes: the user decides in the end", async () => {
    answering.ask(conversationId, "hello");
    for (let time = 0; time < 5; time += 1) await reconnect();
    expect(server.requests).toHaveLength(0);
    expect(branch()[1]).toMatchObject({
      status: "failed",
      error: "The connection broke each of the 5 times that this was sent.",
    });
  });

  test("while another version is shown: what is written can still be found and stopped", async () => {
    answering.ask(conversationId, "hello");
    server.answer(["Half of"], null);
    server.isUp = false;
    server.socket.close();
    expect(branch()[1]).toMatchObject({ status: "waiting", text: "" });
    const half = all().find((each) => each.text === "Half of") as MessageRecord;
    store.showBranch(conversationId, half.id);
    expect(branch()[1]?.text).toBe("Half of");
    const written = answering.underWayIn(conversationId) as MessageRecord;
    expect(written.id).not.toBe(half.id);
    answering.stop(written);
    expect(answering.underWayIn(conversationId)).toBeNull();
  });

  test("an answer that a server cuts off on its way out counts as broken", async () => {
    answering.ask(conversationId, "hello");
    server.answer(["Half"], "failed", "server_shutting_down");
    await reconnect();
    server.answer(["Whole"]);
    expect(branch().map((each) => each.text)).toEqual(["hello", "Whole"]);
  });
});
