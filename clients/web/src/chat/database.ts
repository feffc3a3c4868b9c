/**
 * Conversations in IndexedDB. Messages are records of their own, so that two tabs that write to one
 * conversation never overwrite each other's. Each write is in the journal until it is confirmed.
 */
import { type DBSchema, type IDBPDatabase, type IDBPTransaction, openDB } from "idb";
import { type Entry, type Write, journal } from "./journal";
import type { ConversationRecord, MessageRecord } from "./records";

interface Schema extends DBSchema {
  conversations: { key: string; value: ConversationRecord };
  messages: { key: string; value: MessageRecord; indexes: { conversation: string } };
}

type StoreName = "conversations" | "messages";
const STORES: StoreName[] = ["conversations", "messages"];
type WholeTransaction = IDBPTransaction<Schema, StoreName[], "readwrite">;

export interface Database {
  /** False when nothing outlives the page, as in some private windows. */
  readonly isLasting: boolean;
  /** Writes down what a reload of the tab cut off, and tells what that was. */
  recover(): Promise<readonly Write[]>;
  conversations(): Promise<ConversationRecord[]>;
  conversation(id: string): Promise<ConversationRecord | undefined>;
  messages(conversationId: string): Promise<MessageRecord[]>;
  message(id: string): Promise<MessageRecord | undefined>;
  putConversation(record: ConversationRecord): Promise<void>;
  putMessage(record: MessageRecord): Promise<void>;
  /** The conversation with all its messages. */
  remove(conversationId: string): Promise<void>;
}

export async function openDatabase(name = "paceline"): Promise<Database> {
  try {
    const opened = await openDB<Schema>(name, 1, {
      upgrade(database) {
        database.createObjectStore("conversations", { keyPath: "id" });
        const messages = database.createObjectStore("messages", { keyPath: "id" });
        messages.createIndex("conversation", "conversationId");
      },
    });
    return new Stored(opened);
  } catch {
    return new InMemory();
  }
}

class Stored implements Database {
  readonly isLasting = true;
  /** Conversations that the database is known to have held. */
  private readonly known = new Set<string>();
  private lastWrittenAt = 0;

  constructor(private readonly database: IDBPDatabase<Schema>) {}

  async recover(): Promise<readonly Write[]> {
    const entries = journal.read();
    if (entries.length === 0) return [];
    const transaction = this.database.transaction(STORES, "readwrite");
    const [written] = await Promise.all([writeAnew(transaction, entries), transaction.done]);
    for (const entry of entries) entry.forget();
    return written;
  }

  async conversations(): Promise<ConversationRecord[]> {
    const found = await this.database.getAll("conversations");
    for (const { id } of found) this.known.add(id);
    return found;
  }

  async conversation(id: string): Promise<ConversationRecord | undefined> {
    const found = await this.database.get("conversations", id);
    if (found !== undefined) this.known.add(id);
    return found;
  }

  messages(conversationId: string): Promise<MessageRecord[]> {
    return this.database.getAllFromIndex("messages", "conversation", conversationId);
  }

  message(id: string): Promise<MessageRecord | undefined> {
    return this.database.get("messages", id);
  }

  async putConversation(conversation: ConversationRecord): Promise<void> {
    const record = { ...conversation, writtenAt: this.now() };
    const isNew = !this.known.has(record.id);
    const entry = journal.remember({ kind: "conversation", record, isNew });
    await this.database.put("conversations", record);
    this.known.add(record.id);
    entry.forget();
  }

  async putMessage(message: MessageRecord): Promise<void> {
    const record = { ...message, writtenAt: this.now() };
    const entry = journal.remember({ kind: "message", record });
    await this.database.put("messages", record);
    entry.forget();
  }

  async remove(conversationId: string): Promise<void> {
    const entry = journal.remember({ kind: "removal", id: conversationId });
    const transaction = this.database.transaction(STORES, "readwrite");
    await Promise.all([removeAll(transaction, conversationId), transaction.done]);
    entry.forget();
  }

  /** Later with each write, also of those within a millisecond. */
  private now(): number {
    this.lastWrittenAt = Math.max(Date.now(), this.lastWrittenAt + 1);
    return this.lastWrittenAt;
  }
}

/**
 * What is stored may be ahead of the journal: a duplicated tab begins with a copy of the journal
 * while the first tab writes on, and a closed tab may be opened again much later. So nothing newer
 * is overwritten, and no conversation that the database was known to hold comes back when another
 * tab deleted it.
 */
async function writeAnew(
  transaction: WholeTransaction,
  entries: readonly Entry[],
): Promise<Write[]> {
  const conversations = transaction.objectStore("conversations");
  const messages = transaction.objectStore("messages");
  const written: Write[] = [];
  for (const { write } of entries) {
    if (write.kind === "removal") {
      await removeAll(transaction, write.id);
    } else if (write.kind === "conversation") {
      const stored = await conversations.get(write.record.id);
      if (stored === undefined ? !write.isNew : isNewer(stored, write.record)) continue;
      await conversations.put(write.record);
    } else {
      if ((await conversations.getKey(write.record.conversationId)) === undefined) continue;
      const stored = await messages.get(write.record.id);
      if (stored !== undefined && isNewer(stored, write.record)) continue;
      await messages.put(write.record);
    }
    written.push(write);
  }
  return written;
}

function isNewer(stored: { writtenAt?: number }, entry: { writtenAt?: number }): boolean {
  return (stored.writtenAt ?? 0) > (entry.writtenAt ?? 0);
}

async function removeAll(transaction: WholeTransaction, conversationId: string): Promise<void> {
  const messages = transaction.objectStore("messages");
  const keys = await messages.index("conversation").getAllKeys(conversationId);
  await Promise.all([
    ...keys.map((key) => messages.delete(key)),
    transaction.objectStore("conversations").delete(conversationId),
  ]);
}

class InMemory implements Database {
  readonly isLasting = false;
  private readonly conversationRecords = new Map<string, ConversationRecord>();
  private readonly messageRecords = new Map<string, MessageRecord>();

  async recover(): Promise<readonly Write[]> {
    return [];
  }

  async conversations(): Promise<ConversationRecord[]> {
    return [...this.conversationRecords.values()];
  }

  async conversation(id: string): Promise<ConversationRecord | undefined> {
    return this.conversationRecords.get(id);
  }

  async messages(conversationId: string): Promise<MessageRecord[]> {
    return [...this.messageRecords.values()].filter(
      (message) => message.conversationId === conversationId,
    );
  }

  async message(id: string): Promise<MessageRecord | undefined> {
    return this.messageRecords.get(id);
  }

  async putConversation(record: ConversationRecord): Promise<void> {
    this.conversationRecords.set(record.id, record);
  }

  async putMessage(record: MessageRecord): Promise<void> {
    this.messageRecords.set(record.id, record);
  }

  async remove(conversationId: string): Promise<void> {
    this.conversationRecords.delete(conversationId);
    for (const message of this.messageRecords.values()) {
      if (message.conversationId === conversationId) this.messageRecords.delete(message.id);
    }
  }
}
