/** What a reload of the tab, at any moment, leaves to be written down by the page after it. */
import "fake-indexeddb/auto";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Answering } from "../../src/chat/answering";
import { type Database, openDatabase } from "../../src/chat/database";
import { journal } from "../../src/chat/journal";
import { type ConversationRecord, type MessageRecord, newMessage } from "../../src/chat/records";
import { Store } from "../../src/chat/store";
import type { TabNote } from "../../src/chat/tabs";
import { Lanes } from "../../src/wire/lanes";
import { FakeServer, FakeStorage, settle } from "./fakes";

let numDatabases = 0;
let database: Database;
let storage: FakeStorage;
let told: TabNote[];

beforeEach(async () => {
  storage = begin(new FakeStorage());
  database = await emptyDatabase();
});

afterEach(() => vi.unstubAllGlobals());

function begin(next: FakeStorage): FakeStorage {
  vi.stubGlobal("sessionStorage", next);
  return next;
}

function emptyDatabase(): Promise<Database> {
  return openDatabase(`journal-${(numDatabases += 1)}`);
}

/** A page. From now on `told` is what this one tells. */
async function open(over: Database): Promise<Store> {
  const notes: TabNote[] = [];
  told = notes;
  const store = new Store(over, {
    tell: (note) => {
      if (note.kind !== "who_writes") notes.push(note);
    },
    listen: () => {},
  });
  await store.start();
  return store;
}

/** The tab is reloaded now, and its database, `over`, has seen nothing of what is not confirmed. */
async function reload(over: Database): Promise<Store> {
  storage = begin(storage.copy());
  return open(over);
}

function texts(store: Store, id: string): string[] {
  const conversation = store.conversation(id);
  return conversation === null ? [] : store.branch(conversation).map((cell) => cell.peek().text);
}

/** A conversation that is stored, as another page left it. */
async function stored(): Promise<{ conversation: ConversationRecord; question: MessageRecord }> {
  const store = await open(database);
  const { id } = store.create();
  const question = store.append(newMessage(id, null, "user", 1, "hello")).peek();
  await settle();
  expect(storage.length).toBe(0);
  return { conversation: (await database.conversation(id)) as ConversationRecord, question };
}

describe("a reload before anything is confirmed", () => {
  test("keeps the conversation, its messages, its title and the branch that was shown", async () => {
    const over = await emptyDatabase();
    const store = await open(database);
    const { id } = store.create();
    const question = newMessage(id, null, "user", 1, "hello");
    store.append(question);
    const answer = store.append(newMessage(id, question.id, "assistant", 1));
    store.update(answer, { status: "done", text: "Hi" });
    store.keep(answer.peek());
    store.rename(id, "A better name");

    const again = await reload(over);
    await again.open(id);
    expect(texts(again, id)).toEqual(["hello", "Hi"]);
    expect(again.active).toMatchObject({ title: "A better name", isNamed: true });
    expect(again.find(answer.peek().id)?.peek().status).toBe("done");
    expect(storage.length).toBe(0);
    // Other tabs are told, of a message after the one that it follows.
    expect(told).toEqual([
      { kind: "conversation", id },
      { kind: "message", id: question.id, conversationId: id },
      { kind: "message", id: answer.peek().id, conversationId: id },
    ]);
  });

  test("keeps a change to what was stored", async () => {
    const { conversation } = await stored();
    const over = await emptyDatabase();
    await over.putConversation(conversation);
    const store = await open(database);
    const { sampling } = conversation;
    store.configure(conversation.id, { instructions: "Be kind.", sampling });
    const again = await reload(over);
    expect(again.conversation(conversation.id)?.instructions).toBe("Be kind.");
  });

  test("keeps a deletion, also of what was being written", async () => {
    const { conversation, question } = await stored();
    const { id } = conversation;
    const over = await emptyDatabase();
    await over.putConversation(conversation);
    await over.putMessage(question);
    const store = await open(database);
    await store.open(id);
    store.append(newMessage(id, question.id, "user", 2, "more"));
    void store.remove(id);
    const again = await reload(over);
    expect(again.conversations.value).toEqual([]);
    expect(await over.messages(id)).toEqual([]);
    expect(told).toEqual([{ kind: "removed", id }]);
  });

  test("leaves an answer either to be begun anew or written down whole", async () => {
    const store = await open(database);
    const { id } = store.create();
    const server = new FakeServer();
    const connection = await server.connect();
    const answering = new Answering(store, connection, new Lanes(connection));
    await settle();
    let left: string[] | null = null;
    storage.removeItem = function (key) {
      // What is there in the moment before the tab forgets that it is writing the answer.
      if (key === "paceline.unfinished") {
        const keys = Array.from({ length: this.length }, (_, index) => this.key(index) ?? "");
        left ??= keys.map((each) => this.getItem(each) ?? "");
      }
      FakeStorage.prototype.removeItem.call(this, key);
    };
    answering.ask(id, "hello");
    server.answer(["The ", "whole"]);
    expect(left).toContainEqual(expect.stringMatching(/"text":"The whole","status":"done"/));
  });

  test("begins nothing anew that the user stopped", async () => {
    const store = await open(database);
    const { id } = store.create();
    const server = new FakeServer();
    const connection = await server.connect();
    const answering = new Answering(store, connection, new Lanes(connection));
    await settle();
    answering.ask(id, "hello");
    server.answer(["Half of"], null);
    expect(storage.getItem("paceline.unfinished")).not.toBeNull();
    answering.stop(answering.underWayIn(id) as MessageRecord);
    expect(storage.getItem("paceline.unfinished")).toBeNull(); // the server has not ended it yet
  });
});

describe("what is newer than a copy of the journal", () => {
  test("is not overwritten: a duplicated tab, or one that is opened again", async () => {
    const store = await open(database);
    const { id } = store.create();
    const cell = store.append(newMessage(id, null, "assistant", 1, "half"));
    const copied = storage.copy();
    store.update(cell, { text: "half and more" });
    store.keep(cell.peek());
    store.rename(id, "A better name");
    await settle();

    storage = begin(copied);
    expect(storage.length).toBe(2);
    const other = await open(database);
    await other.open(id);
    expect(other.active?.title).toBe("A better name");
    expect(texts(other, id)).toEqual(["half and more"]);
    expect(storage.length).toBe(0);
    expect(told).toEqual([]);
  });

  test("does not come back after another tab deleted it", async () => {
    const { conversation, question } = await stored();
    const { id } = conversation;
    const store = await open(database);
    await store.open(id);
    store.rename(id, "A better name");
    store.append(newMessage(id, question.id, "user", 2, "more"));
    const copied = storage.copy();
    await settle();
    await store.remove(id);

    storage = begin(copied);
    expect(storage.length).toBe(2);
    const other = await open(database);
    expect(other.conversations.value).toEqual([]);
    expect(await database.messages(id)).toEqual([]);
    expect(storage.length).toBe(0);
  });
});

describe("the tab's storage", () => {
  test("forgets a write when it is confirmed, and not before a newer one of the record is", async () => {
    const store = await open(database);
    const { id } = store.create();
    store.rename(id, "A better name");
    expect(storage.length).toBe(1);
    await settle();
    expect(storage.length).toBe(0);
    const one = journal.remember({ kind: "removal", id });
    const record = newMessage("c", null, "user", 1, "hello");
    const other = journal.remember({ kind: "message", record: { ...record, id } });
    one.forget();
    expect(storage.length).toBe(1);
    other.forget();
    expect(storage.length).toBe(0);
  });

  test("may be full or switched off: only the safety is lost", async () => {
    const error = new DOMException("no storage", "SecurityError");
    for (const next of [
      new FakeStorage([], 10),
      new Proxy(new FakeStorage(), {
        get() {
          throw error;
        },
      }),
    ]) {
      begin(next);
      const store = await open(database);
      const { id } = store.create();
      store.append(newMessage(id, null, "user", 1, "hello"));
      await settle();
      expect(store.storageError.value).toBeNull();
      expect(await database.messages(id)).toHaveLength(1);
      await store.remove(id);
      expect(await database.conversation(id)).toBeUndefined();
    }
  });

  test("may hold anything: what is no write is left alone", async () => {
    const { conversation, question } = await stored();
    const { id } = conversation;
    const key = `paceline.unconfirmed.${id}`;
    const entries: [string, unknown][] = [
      [key, null],
      [key, "text"],
      [key, { kind: "removal" }],
      [key, { kind: "removal", id: "of another key" }],
      [key, { kind: "unheard of", id }],
      [key, { kind: "conversation", record: conversation }],
      [key, { kind: "conversation", record: { ...conversation, sampling: null }, isNew: true }],
      [key, { kind: "conversation", record: { ...conversation, leafId: 3 }, isNew: true }],
      [
        `paceline.unconfirmed.${question.id}`,
        { kind: "message", record: { ...question, writtenAt: Date.now() * 2, tokens: "none" } },
      ],
      ["of.others", { kind: "removal", id }],
    ];
    for (const text of ["{", ...entries.map(([, value]) => JSON.stringify(value))]) {
      const index = entries.findIndex(([, value]) => JSON.stringify(value) === text);
      storage = begin(new FakeStorage([[entries[index]?.[0] ?? key, text]]));
      const store = await open(database);
      await store.open(id);
      expect(told, text).toEqual([]);
      expect(texts(store, id), text).toEqual(["hello"]);
    }
  });
});
