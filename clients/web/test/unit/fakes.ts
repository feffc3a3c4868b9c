/** A server and its sockets, in memory. */
import type {
  ClientEvent,
  PacelineSummary,
  Response as ModelResponse,
  ResponseCreate,
  ServerEvent,
} from "../../src/protocol.generated";
import { Connection, type Surroundings } from "../../src/wire/connection";

export class FakeSocket {
  onopen: (() => void) | null = null;
  onmessage: ((message: { data: string }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  readonly sent: ClientEvent[] = [];

  constructor(
    readonly url: string,
    readonly protocols: string[],
  ) {}

  send(text: string): void {
    this.sent.push(JSON.parse(text) as ClientEvent);
  }

  close(code = 1006): void {
    this.onclose?.({ code });
  }

  receive(event: ServerEvent): void {
    this.onmessage?.({ data: JSON.stringify(event) });
  }
}

/** Accepts connections while `isUp`; the newest socket is `socket`. */
export class FakeServer implements Surroundings {
  isUp = true;
  status = 200;
  readonly sockets: FakeSocket[] = [];
  readonly keys: (string | undefined)[] = [];

  get socket(): FakeSocket {
    const newest = this.sockets.at(-1);
    if (newest === undefined) throw new Error("no socket yet");
    return newest;
  }

  openSocket(url: string, protocols: string[]): WebSocket {
    const socket = new FakeSocket(url, protocols);
    this.sockets.push(socket);
    queueMicrotask(() => socket.onopen?.());
    return socket as unknown as WebSocket;
  }

  async fetch(_: string, init: RequestInit): Promise<Response> {
    this.keys.push((init.headers as Record<string, string>)["Authorization"]);
    if (!this.isUp) throw new TypeError("connection refused");
    const data = [{ id: "org/model", max_model_len: 2048 }];
    return new Response(JSON.stringify({ data }), { status: this.status });
  }

  random(): number {
    return 0.5;
  }

  /** The requests that the newest socket took. */
  get requests(): ResponseCreate[] {
    return this.socket.sent.filter((event) => event.type === "response.create");
  }

  /** Answer the newest request: a piece of text for each delta, and an end if one is given.
   * failure: the `error.type` of a response that fails. */
  answer(
    deltas: readonly string[],
    end: ModelResponse["status"] | null = "completed",
    failure?: string,
  ): void {
    const request = this.requests.at(-1);
    const lane = request?.stream_id ?? "";
    const id = `resp_${this.sockets.length}_${this.requests.length}`;
    this.socket.receive({
      type: "response.created",
      sequence_number: 0,
      stream_id: lane,
      response: response(id, "in_progress", ""),
    });
    for (const delta of deltas) this.delta(lane, delta);
    if (end !== null) this.end(lane, id, end, deltas.join(""), failure);
  }

  delta(lane: string, delta: string): void {
    this.socket.receive({
      type: "response.output_text.delta",
      sequence_number: 1,
      stream_id: lane,
      item_id: "msg_1",
      output_index: 0,
      content_index: 0,
      delta,
      logprobs: [],
      paceline: { tokens: [{ id: 7, text: delta, source: "accepted" }] },
    });
  }

  end(
    lane: string,
    id: string,
    status: ModelResponse["status"],
    text: string,
    failure?: string,
  ): void {
    const type =
      status === "completed"
        ? ("response.completed" as const)
        : status === "failed"
          ? ("response.failed" as const)
          : ("response.incomplete" as const);
    this.socket.receive({
      type,
      sequence_number: 2,
      stream_id: lane,
      response: {
        ...response(id, status, text),
        error:
          failure === undefined
            ? null
            : { code: "server_error", message: `failed: ${failure}`, type: failure },
      },
    });
  }

  refuse(code: string): void {
    this.socket.receive({
      type: "error",
      status: 400,
      sequence_number: null,
      stream_id: this.requests.at(-1)?.stream_id ?? "",
      error: { type: "invalid_request_error", code, message: `refused: ${code}`, param: null },
    });
  }

  async connect(): Promise<Connection> {
    const endpoint = {
      socket: "ws://127.0.0.1/v1/responses",
      models: "http://127.0.0.1/v1/models",
    };
    const connection = new Connection(endpoint, null, this);
    connection.start();
    return connection;
  }
}

export const SUMMARY: PacelineSummary = {
  num_drafted: 8,
  num_examined: 6,
  num_accepted: 5,
  acceptance: 5 / 6,
  tokens_per_step: 2.5,
  accepted_per_position: [3, 2],
  examined_per_position: [4, 3],
  passed_per_position: [3, 2],
  drafter: "model",
  gate: "on",
  reason: "",
  time_to_first_token_ms: 40,
  tokens_per_second: 90,
  draft_ms: 20,
  verify_ms: 70,
  sample_ms: 5,
  other_ms: 5,
  cached_tokens: 0,
  expected_plain_ms: 150,
};

function response(id: string, status: ModelResponse["status"], text: string): ModelResponse {
  return {
    id,
    created_at: 0,
    model: "org/model",
    status,
    output:
      text === ""
        ? []
        : [
            {
              type: "message",
              id: "msg_1",
              status: "completed",
              role: "assistant",
              content: [{ type: "output_text", text, annotations: [], logprobs: null }],
            },
          ],
    object: "response",
    background: false,
    completed_at: null,
    error: null,
    incomplete_details: null,
    instructions: null,
    max_output_tokens: null,
    metadata: {},
    parallel_tool_calls: true,
    previous_response_id: null,
    store: false,
    temperature: null,
    tool_choice: "auto",
    tools: [],
    top_logprobs: null,
    top_p: null,
    truncation: "disabled",
    usage: null,
    paceline: status === "completed" ? SUMMARY : null,
  };
}

/** A tab's own storage, for `vi.stubGlobal("sessionStorage", ...)`. */
export class FakeStorage {
  private readonly items: Map<string, string>;

  /** capacity: the longest text that it takes. */
  constructor(
    items: Iterable<readonly [string, string]> = [],
    private readonly capacity = Infinity,
  ) {
    this.items = new Map(items);
  }

  get length(): number {
    return this.items.size;
  }

  /** In no order that a page could build on. */
  key(index: number): string | null {
    return [...this.items.keys()].at(-1 - index) ?? null;
  }

  getItem(key: string): string | null {
    return this.items.get(key) ?? null;
  }

  setItem(key: string, text: string): void {
    if (text.length > this.capacity) throw new DOMException("full", "QuotaExceededError");
    this.items.set(key, text);
  }

  removeItem(key: string): void {
    this.items.delete(key);
  }

  /** What a reload of the tab at this moment, or a duplicate of it, begins with. */
  copy(): FakeStorage {
    return new FakeStorage(this.items);
  }
}

/** Lets promises, and timers that are due, run. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setTimeout(resolve, 0));
}
