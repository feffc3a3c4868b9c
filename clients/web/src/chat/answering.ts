/**
 * Asking: sends a branch to the server, writes the answer down as it arrives, and begins anew when
 * the connection breaks in between.
 *
 * A conversation is a lane of the socket and has one answer under way at a time. What a server
 * remembers for `previous_response_id` belongs to one connection, so after a reconnect the items
 * themselves are sent again. What the page was writing when it was reloaded it begins anew as well.
 */
import { type Signal, effect, signal } from "@preact/signals";
import type { ErrorDetails, Response, SourcedToken } from "../protocol.generated";
import { type Connection, SHUTTING_DOWN } from "../wire/connection";
import { type Lanes, type Outcome, outputText } from "../wire/lanes";
import { errorInWords } from "./error_words";
import { type MessageRecord, type MessageStatus, newMessage } from "./records";
import { type HeldPrefix, requestFor } from "./request";
import type { Store } from "./store";
import { pathTo } from "./tree";
import { type Unfinished, unfinishedInTab } from "./unfinished";

/** A started answer is asked for anew this often; then the user decides. */
const MAX_RESTARTS = 3;
/** One of which nothing has come yet is sent this often, should it be what breaks the connection. */
const MAX_SENDS = 5;
const KEEP_EVERY_MS = 400;

const AFTER_LOSS =
  "The connection broke, so this answer was begun anew. The first try is kept.";
const AFTER_RELOAD =
  "The page was reloaded, so this answer was begun anew. The first try is kept.";

const ALWAYS_LOST = `The connection broke each of the ${MAX_SENDS} times that this was sent.`;

/** Errors that mean "not on this connection": the same request is right on the next one. */
const CONNECTION_ERRORS = new Set([SHUTTING_DOWN, "websocket_connection_limit_reached"]);

interface Answer {
  readonly cell: Signal<MessageRecord>;
  readonly restarts: number;
  isStopped: boolean;
  isSent: boolean;
  numLost: number;
  lastKept: number;
}

export class Answering {
  /** By conversation. Replaced with each change, so that what shows it follows. */
  private readonly answers = signal<ReadonlyMap<string, Answer>>(new Map());
  /** Answers that the server holds: message id to response id and connection. */
  private readonly held = new Map<string, { responseId: string; epoch: number }>();
  /** What this tab was writing before it was reloaded: message id to conversation id. */
  private readonly before: Map<string, string>;

  constructor(
    private readonly store: Store,
    private readonly connection: Connection,
    private readonly lanes: Lanes,
    private readonly unfinished: Unfinished = unfinishedInTab,
  ) {
    this.before = new Map(
      unfinished.read().map((answer) => [answer.messageId, answer.conversationId]),
    );
    connection.onOpen(() => this.sendWaiting());
    store.onAbandoned((cell) => this.afterReload(cell));
    effect(() => this.rememberUnfinished());
  }

  /** Conversations with an answer that this tab was writing before it was reloaded; load them. */
  get conversationsBefore(): ReadonlySet<string> {
    return new Set(this.before.values());
  }

  /** Ids of the messages that this tab is writing. */
  get messageIds(): string[] {
    return [...this.underWay.values()].map((answer) => answer.cell.peek().id);
  }

  /** Whether an answer is under way; a component that asks is rendered again when that changes. */
  isBusy(conversationId: string): boolean {
    return this.answers.value.has(conversationId);
  }

  /** The answer that is being written, whichever version is shown; followed as `isBusy` is. */
  underWayIn(conversationId: string): MessageRecord | null {
    return this.answers.value.get(conversationId)?.cell.peek() ?? null;
  }

  /** The next turn after the shown branch. Nothing happens while an answer is under way. */
  ask(conversationId: string, text: string): void {
    const conversation = this.store.conversation(conversationId);
    if (conversation === null || this.isBusy(conversationId)) return;
    this.say(conversationId, conversation.leafId, text);
  }

  /** The same turn in other words, as a new branch. */
  edit(message: MessageRecord, text: string): void {
    if (!this.isBusy(message.conversationId)) {
      this.say(message.conversationId, message.parentId, text);
    }
  }

  /** Another answer to the same turn. */
  regenerate(message: MessageRecord): void {
    if (this.isBusy(message.conversationId)) return;
    this.begin(this.newAnswer(message.conversationId, message.parentId), 0);
  }

  stop(message: MessageRecord): void {
    if (this.before.delete(message.id)) this.rememberUnfinished();
    if (!this.stopHere(message.id)) this.store.tellStop(message.id); // another tab may write it
  }

  /** Whether this tab was writing the answer. */
  stopHere(messageId: string): boolean {
    for (const [conversationId, answer] of this.underWay) {
      if (answer.cell.peek().id !== messageId) continue;
      answer.isStopped = true;
      this.rememberUnfinished(); // the server may take a moment to end it
      if (answer.isSent) this.lanes.cancel(conversationId);
      else this.end(answer, "cancelled");
      return true;
    }
    return false;
  }

  /** What a reload is to begin anew; not what the user stopped. */
  private rememberUnfinished(): void {
    const now = [...this.answers.value]
      .filter(([, answer]) => !answer.isStopped)
      .map(([conversationId, answer]) => [answer.cell.peek().id, conversationId] as const);
    this.unfinished.write(
      [...this.before, ...now].map(([messageId, conversationId]) => ({
        conversationId,
        messageId,
      })),
    );
  }

  private say(conversationId: string, parentId: string | null, text: string): void {
    const question = newMessage(conversationId, parentId, "user", Date.now(), text);
    this.store.append(question);
    this.begin(this.newAnswer(conversationId, question.id), 0);
  }

  private newAnswer(conversationId: string, parentId: string | null): MessageRecord {
    return newMessage(conversationId, parentId, "assistant", Date.now());
  }

  private begin(message: MessageRecord, restarts: number): void {
    this.start(this.store.append(message), restarts);
  }

  private start(cell: Signal<MessageRecord>, restarts: number): void {
    const lastKept = Date.now();
    const answer = { cell, restarts, isStopped: false, isSent: false, numLost: 0, lastKept };
    this.answers.value = new Map(this.underWay).set(cell.peek().conversationId, answer);
    this.send(answer);
  }

  /** An answer that nobody writes any more: begun anew if this tab did, and it is still shown. */
  private afterReload(cell: Signal<MessageRecord>): void {
    const message = cell.peek();
    if (!this.before.delete(message.id)) return;
    const conversation = this.store.conversation(message.conversationId);
    if (conversation?.leafId !== message.id || this.isBusy(conversation.id)) return;
    if (message.text === "") {
      this.store.update(cell, { status: "waiting" });
      this.start(cell, 0);
    } else {
      const next = this.newAnswer(message.conversationId, message.parentId);
      next.note = AFTER_RELOAD;
      this.begin(next, 0);
    }
  }

  private sendWaiting(): void {
    for (const answer of this.underWay.values()) if (!answer.isSent) this.send(answer);
  }

  private send(answer: Answer): void {
    const message = answer.cell.peek();
    const conversation = this.store.conversation(message.conversationId);
    if (conversation === null) {
      this.leave(message.conversationId);
      return;
    }
    const path = pathTo(this.store.messages(conversation.id), message.parentId);
    const request = requestFor(conversation, path, this.heldPrefix(path));
    answer.isSent = this.lanes.start(conversation.id, request, {
      onCreated: (response) => this.store.update(answer.cell, { model: response.model }),
      onText: (delta, tokens) => this.onText(answer, delta, tokens),
      onEnd: (outcome) => this.onEnd(answer, outcome, request.previous_response_id ?? null),
    });
  }

  private heldPrefix(path: readonly MessageRecord[]): HeldPrefix | null {
    for (let index = path.length - 1; index >= 0; index -= 1) {
      const held = this.held.get(path[index]?.id ?? "");
      if (held !== undefined && held.epoch === this.connection.epoch) {
        return { responseId: held.responseId, index };
      }
    }
    return null;
  }

  private onText(answer: Answer, delta: string, tokens: readonly SourcedToken[]): void {
    const message = answer.cell.peek();
    this.store.update(answer.cell, {
      text: message.text + delta,
      tokens: tokens.length > 0 ? message.tokens.concat(tokens) : message.tokens,
      status: "streaming",
    });
    const now = Date.now();
    if (now - answer.lastKept >= KEEP_EVERY_MS) {
      answer.lastKept = now;
      this.store.keep(answer.cell.peek());
    }
  }

  private onEnd(answer: Answer, outcome: Outcome, previousId: string | null): void {
    if (this.store.find(answer.cell.peek().id) === undefined) {
      // Its conversation was deleted meanwhile; nothing of it may be written down again.
      this.leave(answer.cell.peek().conversationId);
      return;
    }
    switch (outcome.kind) {
      case "finished":
        this.onFinished(answer, outcome.response);
        break;
      case "refused":
        this.onRefused(answer, outcome.error, previousId);
        break;
      case "lost":
        this.onLost(answer);
        break;
    }
  }

  private onFinished(answer: Answer, response: Response): void {
    const message = answer.cell.peek();
    if (CONNECTION_ERRORS.has(response.error?.type ?? "")) {
      this.onLost(answer); // cut off by a server on its way out
      return;
    }
    const text = outputText(response);
    const status = statusOf(response);
    this.store.update(answer.cell, {
      // The finished response is the truth; it differs only if something went missing.
      text: status === "failed" ? message.text : text,
      summary: response.paceline ?? null,
      numTokens: response.usage?.output_tokens ?? null,
      maxTokens: response.max_output_tokens,
      model: response.model,
      error:
        response.error === null ? null : errorInWords(response.error.type, response.error.message),
    });
    if (status !== "failed") {
      this.held.set(message.id, { responseId: response.id, epoch: this.connection.epoch });
    }
    this.end(answer, status);
  }

  private onRefused(answer: Answer, error: ErrorDetails, previousId: string | null): void {
    if (CONNECTION_ERRORS.has(error.code)) {
      this.onLost(answer);
      return;
    }
    if (error.code === "previous_response_not_found" && previousId !== null) {
      for (const [id, held] of this.held) if (held.responseId === previousId) this.held.delete(id);
      this.send(answer);
      return;
    }
    this.store.update(answer.cell, { error: errorInWords(error.code, error.message) });
    this.end(answer, "failed");
  }

  /** What arrived is kept as a variant of its own; the question is asked again when it can be. */
  private onLost(answer: Answer): void {
    const message = answer.cell.peek();
    if (answer.isStopped) {
      this.end(answer, "cancelled");
    } else if (message.text === "") {
      answer.isSent = false;
      answer.numLost += 1;
      if (answer.numLost < MAX_SENDS) {
        this.store.update(answer.cell, { status: "waiting" }); // until the next connection
      } else {
        this.store.update(answer.cell, { error: ALWAYS_LOST });
        this.end(answer, "failed");
      }
    } else {
      this.end(answer, "interrupted");
      if (answer.restarts < MAX_RESTARTS) {
        const next = this.newAnswer(message.conversationId, message.parentId);
        next.note = AFTER_LOSS;
        this.begin(next, answer.restarts + 1);
      }
    }
  }

  private end(answer: Answer, status: MessageStatus): void {
    this.store.update(answer.cell, { status });
    this.store.keep(answer.cell.peek());
    // Only now: at no moment is an answer neither written down nor begun anew by a reload.
    this.leave(answer.cell.peek().conversationId);
  }

  private leave(conversationId: string): void {
    const others = new Map(this.underWay);
    others.delete(conversationId);
    this.answers.value = others;
  }

  private get underWay(): ReadonlyMap<string, Answer> {
    return this.answers.peek();
  }
}

function statusOf(response: Response): MessageStatus {
  switch (response.status) {
    case "completed":
      return "done";
    case "cancelled":
      return "cancelled";
    case "incomplete":
      return "cut";
    default:
      return "failed";
  }
}
