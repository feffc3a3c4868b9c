/**
 * Conversations in IndexedDB. Messages are records of their own, so that two tabs that write to one
 * conversation never overwrite each other's.
 */
import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import type { ConversationRecord, MessageRecord } from "./records";

interface Schema extends DBSchema {
  conversations: { key: string; value: ConversationRecord };
  messages: { key: string; value: MessageRecord; indexes: { conversation: string } };
}

export interface Database {
  /** False when nothing outlives the page, as in some private windows. */
  readonly isLasting: boolean;
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

  constructor(private readonly database: IDBPDatabase<Schema>) {}

  conversations(): Promise<ConversationRecord[]> {
    return this.database.getAll("conversations");
  }

  conversation(id: string): Promise<ConversationRecord | undefined> {
    return this.database.get("conversations", id);
  }

  messages(conversationId: string): Promise<MessageRecord[]> {
    return this.database.getAllFromIndex("messages", "conversation", conversationId);
  }

  message(id: string): Promise<MessageRecord | undefined> {
    return this.database.get("messages", id);
  }

  async putConversation(record: ConversationRecord): Promise<void> {
    await this.database.put("conversations", record);
  }

  async putMessage(record: MessageRecord): Promise<void> {
    await this.database.put("messages", record);
  }

  async remove(conversationId: string): Promise<void> {
    const transaction = this.database.transaction(["conversations", "messages"], "readwrite");
    const messages = transaction.objectStore("messages");
    const keys = await messages.index("conversation").getAllKeys(conversationId);
    await Promise.all([
      ...keys.map((key) => messages.delete(key)),
      transaction.objectStore("conversations").delete(conversationId),
      transaction.done,
    ]);
  }
}

class InMemory implements Database {
  readonly isLasting = false;
  private readonly conversationRecords = new Map<string, ConversationRecord>();
  private readonly messageRecords = new Map<string, MessageRecord>();

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
