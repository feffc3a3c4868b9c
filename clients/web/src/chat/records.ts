/** What the browser keeps: conversations, and messages that form a tree under each. */
import type { PacelineSummary, SourcedToken } from "../protocol.generated";

/** null: the server's default; of max_output_tokens LONGEST_ANSWER. */
export interface Sampling {
  temperature: number | null;
  top_p: number | null;
  top_k: number | null;
  min_p: number | null;
  repetition_penalty: number | null;
  presence_penalty: number | null;
  frequency_penalty: number | null;
  max_output_tokens: number | null;
  seed: number | null;
  stop: string[];
  speculation: "auto" | "on" | "off" | null;
  num_speculative_tokens: number | null;
  drafter: "auto" | "model" | "ngram" | "none" | null;
}

/**
 * Tokens of an answer where nothing is set: a small model may repeat itself to the end of its
 * context.
 */
export const LONGEST_ANSWER = 1024;

export const SERVER_DEFAULTS: Sampling = {
  temperature: null,
  top_p: null,
  top_k: null,
  min_p: null,
  repetition_penalty: null,
  presence_penalty: null,
  frequency_penalty: null,
  max_output_tokens: null,
  seed: null,
  stop: [],
  speculation: null,
  num_speculative_tokens: null,
  drafter: null,
};

/** leafId: the last message of the branch that is shown. Times are milliseconds since 1970. */
export interface ConversationRecord {
  readonly id: string;
  readonly createdAt: number;
  updatedAt: number;
  title: string;
  /** False as long as the title is the beginning of the first message. */
  isNamed: boolean;
  instructions: string;
  sampling: Sampling;
  leafId: string | null;
  /** Set by the database with each write. Records that were stored without it are older. */
  writtenAt?: number;
}

/**
 * waiting: not sent yet, or the server has not begun. done: the model ended it. cancelled: the user
 * did. cut: a length limit did. interrupted: the connection or the page went away. failed: see
 * `error`.
 */
export type MessageStatus =
  | "waiting"
  | "streaming"
  | "done"
  | "cancelled"
  | "cut"
  | "interrupted"
  | "failed";

export interface MessageRecord {
  readonly id: string;
  readonly conversationId: string;
  /** The message that this one answers or follows; null for the first. */
  readonly parentId: string | null;
  readonly role: "user" | "assistant";
  readonly createdAt: number;
  text: string;
  status: MessageStatus;
  error: string | null;
  tokens: SourcedToken[];
  summary: PacelineSummary | null;
  numTokens: number | null;
  /** The most tokens that were asked for. Messages that were stored without it have none. */
  maxTokens?: number | null;
  model: string | null;
  /** Why this answer was begun anew, if it was. */
  note: string | null;
  /** As of a conversation. */
  writtenAt?: number;
}

export function isUnderWay(message: MessageRecord): boolean {
  return message.status === "waiting" || message.status === "streaming";
}

/** randomUUID exists on secure pages only, and a server in the local network is not one. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(now: number, like?: ConversationRecord): ConversationRecord {
  return {
    id: newId(),
    createdAt: now,
    updatedAt: now,
    title: "New conversation",
    isNamed: false,
    instructions: like?.instructions ?? "",
    sampling: { ...(like?.sampling ?? SERVER_DEFAULTS) },
    leafId: null,
  };
}

export function newMessage(
  conversationId: string,
  parentId: string | null,
  role: "user" | "assistant",
  now: number,
  text = "",
): MessageRecord {
  return {
    id: newId(),
    conversationId,
    parentId,
    role,
    createdAt: now,
    text,
    status: role === "user" ? "done" : "waiting",
    error: null,
    tokens: [],
    summary: null,
    numTokens: null,
    model: null,
    note: null,
  };
}

/** Far more than any list shows; a whole document is no title. */
const TITLE_LENGTH = 300;

/** A text in one line. What does not fit on the screen is cut there, not here. */
export function titleFrom(text: string): string {
  const line = text.trimStart().slice(0, 4 * TITLE_LENGTH).replace(/\s+/g, " ").trim();
  if (line.length <= TITLE_LENGTH) return line || "New conversation";
  const cut = line.slice(0, TITLE_LENGTH);
  const space = cut.lastIndexOf(" ");
  return `${(space > TITLE_LENGTH / 2 ? cut.slice(0, space) : cut).trimEnd()}…`;
}
