/** The messages of a conversation as a tree: an edit or a new answer is a sibling, never a loss. */
import type { MessageItem } from "../protocol.generated";
import type { MessageRecord } from "./records";

export type Messages = ReadonlyMap<string, MessageRecord>;

/** From the first message to `leafId`; empty when that is unknown. */
export function pathTo(messages: Messages, leafId: string | null): MessageRecord[] {
  const path: MessageRecord[] = [];
  const seen = new Set<string>();
  let id = leafId;
  while (id !== null && !seen.has(id)) {
    seen.add(id);
    const message = messages.get(id);
    if (message === undefined) break;
    path.push(message);
    id = message.parentId;
  }
  return path.reverse();
}

/** Messages with the same parent and role, oldest first, the message itself among them. */
export function variantsOf(messages: Messages, message: MessageRecord): MessageRecord[] {
  return [...messages.values()]
    .filter(
      (other) =>
        other.parentId === message.parentId &&
        other.role === message.role &&
        other.conversationId === message.conversationId,
    )
    .sort(byAge);
}

/** The newest version before this one of which there is text; null without one. */
export function versionBefore(messages: Messages, message: MessageRecord): MessageRecord | null {
  const variants = variantsOf(messages, message);
  const index = variants.findIndex((each) => each.id === message.id);
  return variants.slice(0, Math.max(0, index)).findLast((each) => each.text !== "") ?? null;
}

/** Where the newest branch under a message ends. */
export function newestLeafUnder(messages: Messages, id: string): string {
  const children = new Map<string, MessageRecord[]>();
  for (const message of messages.values()) {
    if (message.parentId === null) continue;
    const siblings = children.get(message.parentId);
    if (siblings) siblings.push(message);
    else children.set(message.parentId, [message]);
  }
  let leaf = id;
  for (;;) {
    const next = children.get(leaf)?.sort(byAge).at(-1);
    if (next === undefined) return leaf;
    leaf = next.id;
  }
}

/** What a server needs to know of messages that it does not hold. Answers without text say nothing. */
export function itemsOf(path: readonly MessageRecord[]): MessageItem[] {
  const items: MessageItem[] = [];
  for (const message of path) {
    if (message.role === "user") {
      items.push({ type: "message", role: "user", content: message.text });
    } else if (message.text !== "") {
      items.push({
        type: "message",
        role: "assistant",
        content: [{ type: "output_text", text: message.text }],
      });
    }
  }
  return items;
}

function byAge(one: MessageRecord, other: MessageRecord): number {
  return one.createdAt - other.createdAt || (one.id < other.id ? -1 : 1);
}
