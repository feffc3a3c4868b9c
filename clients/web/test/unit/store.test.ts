import "fake-indexeddb/auto";
import { beforeEach, expect, test } from "vitest";
import { type Database, openDatabase } from "../../src/chat/database";
import { newMessage } from "../../src/chat/records";
import { Store } from "../../src/chat/store";
import type { TabNote, Tabs } from "../../src/chat/tabs";
import { settle } from "./fakes";

/** Tabs that hear each other at once. */
class Browser {
  private readonly listeners: ((note: TabNote) => void)[][] = [];

  tab(): Tabs {
    const own: ((note: TabNote) => void)[] = [];
    this.listeners.push(own);
    return {
      tell: (note) => {
        for (const others of this.listeners) {
          if (others !== own) for (const listener of others) listener(note);
        }
      },
      listen: (listener) => void own.push(listener),
    };
  }
}

let numDatabases = 0;
let database: Database;
let browser: Browser;

beforeEach(async () => {
  database = await openDatabase(`store-${(numDatabases += 1)}`);
  browser = new Browser();
});

async function open(written: string[] = []): Promise<Store> {
  const store = new Store(database, browser.tab(), () => written);
  await store.start();
  return store;
}

function texts(store: Store, id: string): string[] {
  const conversation = store.conversation(id);
  return conversation === null ? [] : store.branch(conversation).map((cell) => cell.peek().text);
}

test("what was said is there after a reload, with the branch that was shown", async () => {
  const store = await open();
  const { id } = store.create();
  const question = newMessage(id, null, "user", 1, "hello");
  store.append(question);
  const first = { ...newMessage(id, question.id, "assistant", 2, "one"), status: "done" as const };
  const second = { ...newMessage(id, question.id, "assistant", 3, "two"), status: "done" as const };
  store.append(first);
  store.append(second);
  store.showBranch(id, first.id);
  await settle();

  const again = await open();
  expect(again.conversations.value.map((each) => each.title)).toEqual(["hello"]);
  await again.open(id);
  expect(texts(again, id)).toEqual(["hello", "one"]);
});

test("an answer that nobody writes any more was interrupted", async () => {
  const store = await open();
  const { id } = store.create();
  const answer = newMessage(id, null, "assistant", 2, "half");
  store.append({ ...answer, status: "streaming" });
  await settle();

  const alone = new Browser();
  const again = new Store(database, alone.tab());
  await again.start();
  await again.open(id);
  await new Promise((resolve) => setTimeout(resolve, 350));
  expect(again.find(answer.id)?.peek().status).toBe("interrupted");
});

test("an answer that another tab writes goes on there", async () => {
  const written: string[] = [];
  const store = await open(written);
  const { id } = store.create();
  const answer = newMessage(id, null, "assistant", 2, "half");
  const cell = store.append({ ...answer, status: "streaming" });
  written.push(answer.id);
  await settle();

  const other = await open();
  await other.open(id);
  await new Promise((resolve) => setTimeout(resolve, 350));
  expect(other.find(answer.id)?.peek().status).toBe("streaming");
  store.update(cell, { text: "half and more" });
  store.keep(cell.peek());
  await settle();
  expect(texts(other, id)).toEqual(["half and more"]);
});

test("two tabs that write to one conversation lose nothing of each other", async () => {
  const one = await open();
  const { id } = one.create();
  await settle();
  const other = await open();
  await other.open(id);
  const root = newMessage(id, null, "user", 1, "from one");
  one.append(root);
  await settle();
  other.append(newMessage(id, root.id, "user", 2, "from the other"));
  one.append(newMessage(id, root.id, "user", 3, "from one again"));
  await settle();
  const stored = await database.messages(id);
  expect(stored.map((each) => each.text).sort()).toEqual([
    "from one",
    "from one again",
    "from the other",
  ]);
});

test("a deleted conversation is gone in every tab, with its messages", async () => {
  const one = await open();
  const { id } = one.create();
  one.append(newMessage(id, null, "user", 1, "hello"));
  await settle();
  const other = await open();
  await other.open(id);
  await one.remove(id);
  await settle();
  expect(other.conversations.value).toEqual([]);
  expect(other.activeId.value).toBeNull();
  expect(await database.messages(id)).toEqual([]);
});

test("a title that was given stays; one from the first message is the message", async () => {
  const store = await open();
  const { id } = store.create();
  const question = "word ".repeat(40).trim();
  store.append(newMessage(id, null, "user", 1, question));
  expect(store.conversation(id)?.title).toBe(question);
  store.rename(id, "My title");
  store.append(newMessage(id, null, "user", 2, "another beginning"));
  expect(store.conversation(id)?.title).toBe("My title");
});
