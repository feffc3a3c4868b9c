/** Where the server is, relative to the page it served, and the key that it may ask for. */

const KEY_ITEM = "paceline.key";
const JSON_SUBPROTOCOL = "paceline.v1.json";
const KEY_SUBPROTOCOL_PREFIX = "paceline.key.";

/** Addresses of one server. `page` is the document's base address, with any prefix of a proxy. */
export interface Endpoint {
  readonly socket: string;
  readonly models: string;
}

export function endpointOf(page: string): Endpoint {
  const socket = new URL("v1/responses", page);
  socket.protocol = socket.protocol === "https:" ? "wss:" : "ws:";
  return { socket: socket.href, models: new URL("v1/models", page).href };
}

/** What to offer in the handshake: browsers can set no headers there, so a key is offered too. */
export function subprotocols(key: string | null): string[] {
  return key ? [JSON_SUBPROTOCOL, KEY_SUBPROTOCOL_PREFIX + base64url(key)] : [JSON_SUBPROTOCOL];
}

function base64url(text: string): string {
  const bytes = new TextEncoder().encode(text);
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}

/** The key of this browser: for this tab only, or for as long as the user wants it remembered. */
export const keyStorage = {
  read(): string | null {
    try {
      return sessionStorage.getItem(KEY_ITEM) ?? localStorage.getItem(KEY_ITEM);
    } catch {
      return null; // storage is switched off
    }
  },
  write(key: string, remember: boolean): void {
    try {
      sessionStorage.setItem(KEY_ITEM, key);
      if (remember) localStorage.setItem(KEY_ITEM, key);
    } catch {
      /* the key then lives as long as the page */
    }
  },
  forget(): void {
    try {
      sessionStorage.removeItem(KEY_ITEM);
      localStorage.removeItem(KEY_ITEM);
    } catch {
      /* there was none */
    }
  },
};
