/** One socket that comes back: states, delays between tries, and the events that arrive on it. */
import { signal } from "@preact/signals";
import type { ClientEvent, ServerEvent } from "../protocol.generated";
import { type Endpoint, subprotocols } from "./endpoint";

/** needs_key: the server wants a key and has no valid one; nothing is tried until `useKey`. */
export type ConnectionState = "connecting" | "open" | "lost" | "needs_key" | "closed";

/** Why a socket closed, where that matters: RFC 6455, 7.4.1, and its registry. */
const SERVICE_RESTART = 1012;
export const MESSAGE_TOO_BIG = 1009;

/** What `GET /v1/models` says of the one model that is served. */
export interface ServedModel {
  readonly id: string;
  readonly maxTokens: number | null;
}

/** What the connection needs of its surroundings; tests bring their own. */
export interface Surroundings {
  openSocket(url: string, protocols: string[]): WebSocket;
  fetch(url: string, init: RequestInit): Promise<Response>;
  /** Between 0 and 1. */
  random(): number;
}

/** The error's code while a server shuts down. */
export const SHUTTING_DOWN = "server_shutting_down";

const BROWSER: Surroundings = {
  openSocket: (url, protocols) => new WebSocket(url, protocols),
  fetch: (url, init) => fetch(url, init),
  random: () => Math.random(),
};

const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 5000;
const MODELS_TIMEOUT_MS = 10_000;

/** Waits before the n-th try in a row (from 0), spread so that many pages don't come at once. */
export function delayBefore(attempt: number, random: number): number {
  if (attempt === 0) return 0;
  const delay = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** (attempt - 1));
  return delay * (0.75 + random / 2);
}

export class Connection {
  readonly state = signal<ConnectionState>("connecting");
  readonly model = signal<ServedModel | null>(null);
  /** The server has said that it is shutting down; until the next socket is open. */
  readonly isServerLeaving = signal(false);
  /** Counts the sockets that were open; what a server remembers belongs to one of them. */
  epoch = 0;

  private socket: WebSocket | null = null;
  private attempt = 0;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private isTrying = false;
  private readonly eventListeners = new Set<(event: ServerEvent) => void>();
  private readonly openListeners = new Set<() => void>();
  private readonly lossListeners = new Set<(code: number | null) => void>();

  constructor(
    private readonly endpoint: Endpoint,
    private key: string | null,
    private readonly surroundings: Surroundings = BROWSER,
  ) {}

  onEvent(listener: (event: ServerEvent) => void): () => void {
    this.eventListeners.add(listener);
    return () => this.eventListeners.delete(listener);
  }

  /** Called after every opening, the first one too. */
  onOpen(listener: () => void): () => void {
    this.openListeners.add(listener);
    return () => this.openListeners.delete(listener);
  }

  /** Called whenever an open socket is gone. code: of its closing; null where this page closed it. */
  onLoss(listener: (code: number | null) => void): () => void {
    this.lossListeners.add(listener);
    return () => this.lossListeners.delete(listener);
  }

  /** Connect, and stay connected until `close`. */
  start(): void {
    this.state.value = "connecting";
    this.schedule();
  }

  /** Try at once instead of waiting; for when the network or the user's attention is back. */
  hurry(): void {
    if (this.state.value !== "lost" && this.state.value !== "connecting") return;
    this.attempt = 0;
    this.schedule();
  }

  useKey(key: string | null): void {
    this.key = key;
    this.attempt = 0;
    this.dropSocket();
    this.start();
  }

  close(): void {
    this.state.value = "closed";
    if (this.timer !== null) clearTimeout(this.timer);
    this.dropSocket();
  }

  /** False when there is no open socket; the event is then not sent, now or later. */
  send(event: ClientEvent): boolean {
    if (this.socket === null || this.state.value !== "open") return false;
    this.socket.send(JSON.stringify(event));
    return true;
  }

  private schedule(): void {
    if (this.timer !== null) clearTimeout(this.timer);
    const delay = delayBefore(this.attempt, this.surroundings.random());
    this.timer = setTimeout(() => void this.try(), delay);
  }

  private async try(): Promise<void> {
    this.timer = null;
    if (this.isTrying || this.socket !== null) return;
    this.isTrying = true;
    this.attempt += 1;
    try {
      const verdict = await this.askForModel();
      if (this.state.value === "closed") return;
      if (verdict === "needs_key") this.state.value = "needs_key";
      else if (verdict === "no_answer") this.fail();
      else this.open();
    } finally {
      this.isTrying = false;
    }
  }

  /** A page can't see why a handshake was refused, so an ordinary request asks first. */
  private async askForModel(): Promise<"ready" | "needs_key" | "no_answer"> {
    try {
      const response = await this.surroundings.fetch(this.endpoint.models, {
        headers: this.key ? { Authorization: `Bearer ${this.key}` } : {},
        signal: AbortSignal.timeout(MODELS_TIMEOUT_MS),
      });
      if (response.status === 401) return "needs_key";
      if (!response.ok) return "no_answer";
      const body = (await response.json()) as { data?: { id: string; max_model_len?: number }[] };
      const served = body.data?.[0];
      if (served) this.model.value = { id: served.id, maxTokens: served.max_model_len ?? null };
      return "ready";
    } catch {
      return "no_answer";
    }
  }

  private open(): void {
    const socket = this.surroundings.openSocket(this.endpoint.socket, subprotocols(this.key));
    this.socket = socket;
    socket.onopen = () => {
      this.attempt = 0;
      this.epoch += 1;
      this.isServerLeaving.value = false;
      this.state.value = "open";
      for (const listener of this.openListeners) listener();
    };
    socket.onmessage = (message: MessageEvent<string>) => {
      const event = JSON.parse(message.data) as ServerEvent;
      if (saysServerLeaves(event)) this.isServerLeaving.value = true;
      for (const listener of this.eventListeners) listener(event);
    };
    socket.onclose = ({ code }: CloseEvent) => {
      if (this.socket !== socket) return;
      this.socket = null;
      const wasOpen = this.state.value === "open";
      if (code === SERVICE_RESTART) this.isServerLeaving.value = true;
      this.fail();
      if (wasOpen) for (const listener of this.lossListeners) listener(code);
    };
  }

  private fail(): void {
    if (this.state.value === "closed") return;
    this.state.value = "lost";
    this.schedule();
  }

  private dropSocket(): void {
    const socket = this.socket;
    if (socket === null) return;
    const wasOpen = this.state.value === "open" || this.state.value === "closed";
    this.socket = null;
    socket.onclose = null;
    socket.onmessage = null;
    socket.close();
    if (wasOpen) for (const listener of this.lossListeners) listener(null);
  }
}

/** What a request is answered with by a server on its way out. */
function saysServerLeaves(event: ServerEvent): boolean {
  if (event.type === "error") return event.error.code === SHUTTING_DOWN;
  return event.type === "response.failed" && event.response.error?.type === SHUTTING_DOWN;
}
