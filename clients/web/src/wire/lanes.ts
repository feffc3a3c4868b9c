/** Brings the events of a connection to the response that they belong to. One response a lane. */
import type {
  ErrorDetails,
  PacelineSummary,
  Response,
  ResponseCreate,
  ServerEvent,
  SourcedToken,
} from "../protocol.generated";
import { type Connection, MESSAGE_TOO_BIG } from "./connection";

/** lost: the socket went away before the end. refused: the server took nothing. */
export type Outcome =
  | { readonly kind: "finished"; readonly response: Response }
  | { readonly kind: "refused"; readonly error: ErrorDetails }
  | { readonly kind: "lost" };

export interface ResponseListener {
  /** The server took it. */
  onCreated(response: Response): void;
  /** More text. tokens is empty where none stand behind it. */
  onText(delta: string, tokens: readonly SourcedToken[]): void;
  /** Exactly once, and nothing after it. */
  onEnd(outcome: Outcome): void;
}

/** All text of a finished response. */
export function outputText(response: Response): string {
  let text = "";
  for (const item of response.output) {
    if (item.type === "message") for (const part of item.content) text += part.text;
  }
  return text;
}

export function summaryOf(response: Response): PacelineSummary | null {
  return response.paceline ?? null;
}

/** What is told of a request that closed its connection: no error event comes for it. */
const TOO_LARGE: ErrorDetails = {
  type: "invalid_request_error",
  code: "message_too_large",
  message: "the conversation is larger than a message to this server may be",
  param: null,
};

interface Running {
  readonly listener: ResponseListener;
  /** Of the request, in characters. */
  readonly size: number;
}

export class Lanes {
  private readonly running = new Map<string, Running>();

  constructor(private readonly connection: Connection) {
    connection.onEvent((event) => this.deliver(event));
    connection.onLoss((code) => this.loseAll(code));
  }

  /** False, and no further call to the listener, when there is no open socket. */
  start(lane: string, request: ResponseCreate, listener: ResponseListener): boolean {
    if (this.running.has(lane)) throw new Error(`the lane ${lane} is busy`);
    if (!this.connection.send({ ...request, stream_id: lane })) return false;
    this.running.set(lane, { listener, size: JSON.stringify(request).length });
    return true;
  }

  /** The response ends as cancelled, if it has not ended meanwhile. */
  cancel(lane: string): void {
    if (this.running.has(lane)) this.connection.send({ type: "response.cancel", stream_id: lane });
  }

  private deliver(event: ServerEvent): void {
    const lane = event.stream_id;
    const listener = lane === undefined ? undefined : this.running.get(lane)?.listener;
    if (lane === undefined || listener === undefined) return;
    switch (event.type) {
      case "response.created":
        listener.onCreated(event.response);
        break;
      case "response.output_text.delta":
        listener.onText(event.delta, event.paceline?.tokens ?? []);
        break;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        this.running.delete(lane);
        listener.onEnd({ kind: "finished", response: event.response });
        break;
      case "error":
        // A cancel that came too late is answered by an error too; the response has its own end.
        if (event.error.code === "response_not_found") break;
        this.running.delete(lane);
        listener.onEnd({ kind: "refused", error: event.error });
        break;
      default:
        break;
    }
  }

  private loseAll(code: number | null): void {
    const lost = [...this.running.values()].sort((one, other) => other.size - one.size);
    this.running.clear();
    for (const [index, { listener }] of lost.entries()) {
      const isTooLarge = code === MESSAGE_TOO_BIG && index === 0;
      listener.onEnd(isTooLarge ? { kind: "refused", error: TOO_LARGE } : { kind: "lost" });
    }
  }
}
