/** The conversations of this browser as signals, kept in step with the database and other tabs. */
import { type Signal, batch, signal } from "@preact/signals";
import type { Database } from "./database";
import type { Write } from "./journal";
import {
  type ConversationRecord,
  type MessageRecord,
  type Sampling,
  isUnderWay,
  newConversation,
  titleFrom,
} from "./records";
import type { TabNote, Tabs } from "./tabs";
import { newestLeafUnder, pathTo } from "./tree";

/** How long other tabs have to say that they are writing an answer. */
const CLAIM_MS = 300;

export class Store {
  /** Newest first. */
  readonly conversations = signal<ConversationRecord[]>([]);
  readonly activeId = signal<string | null>(null);
  /** Changes with the set of messages of a loaded conversation; each message is its own signal. */
  readonly shape = signal(0);
  /** Set when the browser refuses to store; the user is told. */
  readonly storageError = signal<string | null>(null);

  private readonly loaded = new Map<string, Map<string, Signal<MessageRecord>>>();
  private readonly writtenElsewhere = new Set<string>();
  private abandonedListener: (cell: Signal<MessageRecord>) => void = () => {};

  constructor(
    private readonly database: Database,
    private readonly tabs: Tabs,
    /** Answers that this tab is writing. */
    private readonly writtenHere: () => readonly string[] = () => [],
  ) {
    tabs.listen((note) => void this.hear(note));
  }

  async start(): Promise<void> {
    this.tabs.tell({ kind: "who_writes" });
    await this.guard(this.recover());
    await this.reloadList();
  }

  get active(): ConversationRecord | null {
    return this.conversation(this.activeId.value);
  }

  conversation(id: string | null): ConversationRecord | null {
    return this.conversations.value.find((each) => each.id === id) ?? null;
  }

  /** Plain messages of a loaded conversation. */
  messages(conversationId: string): Map<string, MessageRecord> {
    const cells = this.loaded.get(conversationId) ?? new Map<string, Signal<MessageRecord>>();
    return new Map([...cells].map(([id, cell]) => [id, cell.peek()]));
  }

  /** The shown branch, oldest first. Reads `shape`, so that a component follows it. */
  branch(conversation: ConversationRecord): Signal<MessageRecord>[] {
    void this.shape.value;
    const cells = this.loaded.get(conversation.id);
    if (cells === undefined) return [];
    return pathTo(this.messages(conversation.id), conversation.leafId).flatMap((message) => {
      const cell = cells.get(message.id);
      return cell ? [cell] : [];
    });
  }

  find(messageId: string): Signal<MessageRecord> | undefined {
    for (const cells of this.loaded.values()) {
      const cell = cells.get(messageId);
      if (cell !== undefined) return cell;
    }
    return undefined;
  }

  create(): ConversationRecord {
    const conversation = newConversation(Date.now(), this.active ?? this.conversations.value[0]);
    this.loaded.set(conversation.id, new Map());
    this.save(conversation);
    this.activeId.value = conversation.id;
    return conversation;
  }

  /** Called with each answer that was interrupted when its page went away. */
  onAbandoned(listener: (cell: Signal<MessageRecord>) => void): void {
    this.abandonedListener = listener;
  }

  /** Read a conversation's messages without showing them. */
  async load(id: string): Promise<void> {
    if (this.loaded.has(id)) return;
    const messages = await this.database.messages(id);
    if (this.loaded.has(id)) return;
    this.loaded.set(id, new Map(messages.map((message) => [message.id, signal(message)])));
    if (messages.some(isUnderWay)) setTimeout(() => this.settle(id), CLAIM_MS);
  }

  async open(id: string): Promise<void> {
    await this.load(id);
    batch(() => {
      this.activeId.value = id;
      this.shape.value += 1;
    });
  }

  async remove(id: string): Promise<void> {
    this.forget(id);
    await this.guard(this.database.remove(id));
    this.tabs.tell({ kind: "removed", id });
  }

  rename(id: string, title: string): void {
    this.change(id, { title: titleFrom(title), isNamed: true });
  }

  configure(id: string, settings: { instructions: string; sampling: Sampling }): void {
    this.change(id, settings);
  }

  /** Show the newest branch under a message. */
  showBranch(conversationId: string, messageId: string): void {
    const leafId = newestLeafUnder(this.messages(conversationId), messageId);
    this.change(conversationId, { leafId });
  }

  /** A new message, shown as the end of the branch. */
  append(message: MessageRecord): Signal<MessageRecord> {
    const cell = signal(message);
    const conversation = this.conversation(message.conversationId);
    batch(() => {
      this.cellsOf(message.conversationId).set(message.id, cell);
      this.shape.value += 1;
      const title =
        conversation && !conversation.isNamed && message.parentId === null
          ? { title: titleFrom(message.text) }
          : {};
      this.change(message.conversationId, { leafId: message.id, updatedAt: Date.now(), ...title });
    });
    this.keep(message);
    return cell;
  }

  /** Change a message on the screen; `keep` writes it down. */
  update(cell: Signal<MessageRecord>, changes: Partial<MessageRecord>): void {
    cell.value = { ...cell.peek(), ...changes };
  }

  /** Write a message down and tell the other tabs. */
  keep(message: MessageRecord): void {
    void this.guard(this.database.putMessage(message)).then(() => {
      this.tabs.tell({
        kind: "message",
        id: message.id,
        conversationId: message.conversationId,
      });
    });
  }

  tellStop(messageId: string): void {
    this.tabs.tell({ kind: "stop", messageId });
  }

  private cellsOf(conversationId: string): Map<string, Signal<MessageRecord>> {
    let cells = this.loaded.get(conversationId);
    if (cells === undefined) {
      cells = new Map();
      this.loaded.set(conversationId, cells);
    }
    return cells;
  }

  private change(id: string, changes: Partial<ConversationRecord>): void {
    const conversation = this.conversation(id);
    if (conversation !== null) this.save({ ...conversation, ...changes });
  }

  private save(conversation: ConversationRecord): void {
    this.replace(conversation);
    void this.guard(this.database.putConversation(conversation)).then(() => {
      this.tabs.tell({ kind: "conversation", id: conversation.id });
    });
  }

  private replace(conversation: ConversationRecord): void {
    const others = this.conversations.peek().filter((each) => each.id !== conversation.id);
    this.conversations.value = [...others, conversation].sort(
      (one, other) => other.updatedAt - one.updatedAt,
    );
  }

  /** Other tabs heard nothing of what a reload cut off. */
  private async recover(): Promise<void> {
    for (const write of await this.database.recover()) this.tabs.tell(noteOf(write));
  }

  private async reloadList(): Promise<void> {
    const found = await this.database.conversations();
    this.conversations.value = found.sort((one, other) => other.updatedAt - one.updatedAt);
  }

  private forget(id: string): void {
    batch(() => {
      this.loaded.delete(id);
      this.conversations.value = this.conversations.peek().filter((each) => each.id !== id);
      if (this.activeId.peek() === id) this.activeId.value = null;
    });
  }

  /** Answers that no tab is writing any more were interrupted when their page went away. */
  private settle(conversationId: string): void {
    const here = new Set(this.writtenHere());
    for (const cell of [...this.cellsOf(conversationId).values()]) {
      const message = cell.peek();
      if (!isUnderWay(message) || here.has(message.id) || this.writtenElsewhere.has(message.id)) {
        continue;
      }
      this.update(cell, { status: "interrupted" });
      this.keep(cell.peek());
      this.abandonedListener(cell);
    }
  }

  private async hear(note: TabNote): Promise<void> {
    switch (note.kind) {
      case "conversation": {
        const theirs = await this.database.conversation(note.id);
        const ours = this.conversation(note.id);
        // The other tab's title and settings; which branch is shown is each tab's own affair,
        // unless it is the branch that both were showing which has grown.
        if (theirs !== undefined) this.replace(ours ? this.merge(ours, theirs) : theirs);
        break;
      }
      case "message": {
        const cells = this.loaded.get(note.conversationId);
        if (cells === undefined || this.writtenHere().includes(note.id)) break;
        const message = await this.database.message(note.id);
        if (message === undefined) break;
        const cell = cells.get(note.id);
        if (cell) cell.value = message;
        else {
          cells.set(note.id, signal(message));
          this.follow(message);
          this.shape.value += 1;
        }
        break;
      }
      case "removed":
        this.forget(note.id);
        break;
      case "who_writes":
        this.tabs.tell({ kind: "writes", messageIds: this.writtenHere() });
        break;
      case "writes":
        for (const id of note.messageIds) this.writtenElsewhere.add(id);
        break;
      case "stop":
        break; // for the one who writes
    }
  }

  private merge(ours: ConversationRecord, theirs: ConversationRecord): ConversationRecord {
    return { ...theirs, leafId: ours.leafId ?? theirs.leafId };
  }

  /** A message from another tab that continues, or answers anew, what is shown here. */
  private follow(message: MessageRecord): void {
    const conversation = this.conversation(message.conversationId);
    if (conversation === null) return;
    const shown = conversation.leafId === null ? null : this.find(conversation.leafId)?.peek();
    const continues = message.parentId === conversation.leafId;
    const replaces = shown != null && shown.parentId === message.parentId;
    if (continues || replaces) this.replace({ ...conversation, leafId: message.id });
  }

  private async guard(write: Promise<void>): Promise<void> {
    try {
      await write;
    } catch (error) {
      this.storageError.value = `This browser did not store the conversation: ${String(error)}`;
    }
  }
}

function noteOf(write: Write): TabNote {
  switch (write.kind) {
    case "conversation":
      return { kind: "conversation", id: write.record.id };
    case "message": {
      const { id, conversationId } = write.record;
      return { kind: "message", id, conversationId };
    }
    case "removal":
      return { kind: "removed", id: write.id };
  }
}
