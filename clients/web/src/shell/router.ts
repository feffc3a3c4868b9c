/** Two pages, and the conversation in the fragment, so that a reload and a link come back to it. */
import { signal } from "@preact/signals";

export type Page = "chat" | "telemetry";

function pageOfLocation(): Page {
  return /\/telemetry\/?$/.test(location.pathname) ? "telemetry" : "chat";
}

/** The folder that the app lives in; other than `/` only below a path of a proxy. */
export const base = location.pathname.replace(/(?:telemetry\/?)?$/, "");
export const page = signal<Page>(pageOfLocation());

export function pathOf(target: Page): string {
  return target === "chat" ? base : `${base}telemetry`;
}

export function go(target: Page): void {
  if (target === page.value) return;
  history.pushState(null, "", pathOf(target));
  page.value = target;
}

export function conversationInAddress(): string | null {
  return /^#([0-9a-f]{8,})$/.exec(location.hash)?.[1] ?? null;
}

export function putConversationInAddress(id: string | null): void {
  if (page.peek() !== "chat" || conversationInAddress() === id) return;
  history.replaceState(null, "", id === null ? pathOf("chat") : `#${id}`);
}

addEventListener("popstate", () => {
  page.value = pageOfLocation();
});
