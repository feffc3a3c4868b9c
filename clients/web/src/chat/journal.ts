/**
 * What the database was asked to write and has not confirmed, remembered over a reload of the tab:
 * a page that goes away takes its unfinished transactions with it. The tab's own storage takes an
 * entry at once, before the database is asked.
 */
import type { ConversationRecord, MessageRecord } from "./records";

export type Write =
  | {
      readonly kind: "conversation";
      readonly record: ConversationRecord;
      /** False when the database once held it: if it is gone by then, another tab deleted it. */
      readonly isNew: boolean;
    }
  | { readonly kind: "message"; readonly record: MessageRecord }
  /** Of a conversation with all its messages. */
  | { readonly kind: "removal"; readonly id: string };

export interface Entry {
  readonly write: Write;
  /** Leaves a newer write of the same record alone. */
  forget(): void;
}

const PREFIX = "paceline.unconfirmed.";

export const journal = {
  /** What a page before this one in the tab could not see confirmed, in the order to write it. */
  read(): Entry[] {
    const entries: Entry[] = [];
    try {
      for (let index = 0; index < sessionStorage.length; index += 1) {
        const key = sessionStorage.key(index) ?? "";
        const text = key.startsWith(PREFIX) ? sessionStorage.getItem(key) : null;
        const write = text === null ? null : parse(text);
        if (text === null || write === null || keyOf(write) !== key) continue;
        entries.push({ write, forget: () => forget(key, text) });
      }
    } catch {
      /* storage is switched off, and nothing was remembered */
    }
    return entries.sort((one, other) => turnOf(one.write) - turnOf(other.write));
  },

  /** Replaces an earlier write of the same record; a conversation's removal is one of its writes. */
  remember(write: Write): Entry {
    const key = keyOf(write);
    const text = JSON.stringify(write);
    try {
      sessionStorage.setItem(key, text);
    } catch {
      /* full or switched off; only a reload in the next moment would have needed it */
    }
    return { write, forget: () => forget(key, text) };
  },
};

function keyOf(write: Write): string {
  return PREFIX + (write.kind === "removal" ? write.id : write.record.id);
}

/** Messages come after the conversations, in the order in which they were written. */
function turnOf(write: Write): number {
  return write.kind === "message" ? (write.record.writtenAt ?? 0) : -1;
}

function forget(key: string, text: string): void {
  try {
    if (sessionStorage.getItem(key) === text) sessionStorage.removeItem(key);
  } catch {
    /* it was not remembered either */
  }
}

function parse(text: string): Write | null {
  try {
    const value: unknown = JSON.parse(text);
    return isWrite(value) ? value : null;
  } catch {
    return null;
  }
}

function isWrite(value: unknown): value is Write {
  if (!hasFields(value, { kind: "string" })) return false;
  switch (value["kind"]) {
    case "conversation":
      return hasFields(value, { isNew: "boolean" }) && isConversation(value["record"]);
    case "message":
      return isMessage(value["record"]);
    default:
      return value["kind"] === "removal" && typeof value["id"] === "string";
  }
}

function isConversation(value: unknown): boolean {
  return (
    hasFields(value, {
      id: "string",
      createdAt: "number",
      updatedAt: "number",
      title: "string",
      isNamed: "boolean",
      instructions: "string",
      writtenAt: "number",
    }) &&
    isIdOrNull(value["leafId"]) &&
    hasFields(value["sampling"], {}) &&
    Array.isArray(value["sampling"]["stop"])
  );
}

function isMessage(value: unknown): boolean {
  return (
    hasFields(value, {
      id: "string",
      conversationId: "string",
      role: "string",
      createdAt: "number",
      text: "string",
      status: "string",
      writtenAt: "number",
    }) &&
    isIdOrNull(value["parentId"]) &&
    Array.isArray(value["tokens"])
  );
}

function isIdOrNull(value: unknown): boolean {
  return value === null || typeof value === "string";
}

function hasFields(
  value: unknown,
  types: Readonly<Record<string, "string" | "number" | "boolean">>,
): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null) return false;
  const fields = value as Record<string, unknown>;
  return Object.entries(types).every(([name, type]) => typeof fields[name] === type);
}
