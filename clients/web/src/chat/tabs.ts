/** What the tabs of one browser tell each other: what changed, and which answers they are writing. */

export type TabNote =
  | { readonly kind: "conversation"; readonly id: string }
  | { readonly kind: "message"; readonly id: string; readonly conversationId: string }
  | { readonly kind: "removed"; readonly id: string }
  | { readonly kind: "stop"; readonly messageId: string }
  | { readonly kind: "who_writes" }
  | { readonly kind: "writes"; readonly messageIds: readonly string[] };

export interface Tabs {
  tell(note: TabNote): void;
  listen(listener: (note: TabNote) => void): void;
}

export function openTabs(): Tabs {
  if (typeof BroadcastChannel === "undefined") return { tell: () => {}, listen: () => {} };
  const channel = new BroadcastChannel("paceline");
  return {
    tell: (note) => channel.postMessage(note),
    listen: (listener) =>
      channel.addEventListener("message", (event: MessageEvent<TabNote>) => listener(event.data)),
  };
}
