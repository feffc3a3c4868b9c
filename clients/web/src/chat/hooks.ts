import type { ReadonlySignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

/** A signal's value, at most once for each frame: text arrives far more often than it is seen. */
export function useEachFrame<T>(cell: ReadonlySignal<T>): T {
  const [value, setValue] = useState(cell.peek());
  useEffect(() => {
    let frame = 0;
    const stop = cell.subscribe(() => {
      if (frame !== 0) return;
      frame = requestAnimationFrame(() => {
        frame = 0;
        setValue(cell.peek());
      });
    });
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [cell]);
  return value;
}

/** Whether the page is as narrow as a phone. */
export function useNarrow(): boolean {
  return useMedia("(max-width: 760px)");
}

/** Whether fingers are what the page is used with, and the keyboard is one on the screen. */
export function useTouch(): boolean {
  return useMedia("(hover: none) and (pointer: coarse)");
}

function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const change = (): void => setMatches(list.matches);
    list.addEventListener("change", change);
    return () => list.removeEventListener("change", change);
  }, [query]);
  return matches;
}
