/** Small choices that this browser remembers, as signals. */
import { type Signal, effect, signal } from "@preact/signals";

/** A signal that outlives the page, where storage is allowed. */
export function remembered<T extends string>(
  name: string,
  allowed: readonly T[],
  initial: T,
): Signal<T> {
  const key = `paceline.${name}`;
  let start = initial;
  try {
    const stored = localStorage.getItem(key) as T | null;
    if (stored !== null && allowed.includes(stored)) start = stored;
  } catch {
    /* storage is switched off */
  }
  const cell = signal(start);
  effect(() => {
    const { value } = cell;
    try {
      localStorage.setItem(key, value);
    } catch {
      /* it then holds for this page */
    }
  });
  return cell;
}

export type Theme = "auto" | "light" | "dark";
export const THEMES: readonly Theme[] = ["auto", "light", "dark"];
export const theme = remembered<Theme>("theme", THEMES, "auto");

/** Whether tokens are coloured by where they came from. */
export const originsView = remembered<"on" | "off">("origins", ["on", "off"], "off");

/** Keeps the document's theme at what is chosen. */
export function followTheme(): void {
  effect(() => {
    const { value } = theme;
    if (value === "auto") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = value;
  });
}
