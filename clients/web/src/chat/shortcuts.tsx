/** Everything by keyboard. Combinations with Alt, so that no plain letter does anything. */
import { useEffect } from "preact/hooks";
import { originsView } from "../shell/browser_state";
import { Dialog } from "../shell/dialog";
import { type Services, useServices } from "../shell/services";
import { focusComposer } from "./composer";
import { editing, openDialog } from "./page";
import { type MessageRecord, isUnderWay } from "./records";

interface Shortcut {
  /** `KeyboardEvent.code`, since Alt changes the character on some keyboards. */
  readonly code: string;
  readonly shown: string;
  readonly does: string;
  run(services: Services): void;
}

const SHORTCUTS: readonly Shortcut[] = [
  {
    code: "KeyN",
    shown: "Alt+N",
    does: "New conversation",
    run({ store }) {
      if (store.active === null || store.active.leafId !== null) store.create();
      focusComposer();
    },
  },
  {
    code: "ArrowUp",
    shown: "Alt+↑",
    does: "Conversation above",
    run: (services) => neighbour(services, -1),
  },
  {
    code: "ArrowDown",
    shown: "Alt+↓",
    does: "Conversation below",
    run: (services) => neighbour(services, 1),
  },
  { code: "KeyI", shown: "Alt+I", does: "To the message field", run: () => focusComposer() },
  {
    code: "KeyR",
    shown: "Alt+R",
    does: "Answer again",
    run({ answering, ...services }) {
      const message = newest({ answering, ...services }, "assistant");
      if (message !== null) answering.regenerate(message);
    },
  },
  {
    code: "KeyE",
    shown: "Alt+E",
    does: "Edit the last message",
    run(services) {
      const message = newest(services, "user");
      if (message !== null && !services.answering.isBusy(message.conversationId)) {
        editing.value = message.id;
      }
    },
  },
  {
    code: "KeyT",
    shown: "Alt+T",
    does: "Token origins on or off",
    run: () => (originsView.value = originsView.value === "on" ? "off" : "on"),
  },
  {
    code: "KeyS",
    shown: "Alt+S",
    does: "System prompt and sampling",
    run: () => (openDialog.value = "settings"),
  },
  {
    code: "KeyK",
    shown: "Alt+K",
    does: "This list",
    run: () => (openDialog.value = "shortcuts"),
  },
];

const PLAIN_KEYS = [
  ["Enter", "Send"],
  ["Shift+Enter", "New line"],
  ["Escape", "Stop the answer, or close what is open"],
  ["↑ in an empty field", "Edit the last message"],
] as const;

export function useShortcuts(): void {
  const services = useServices();
  useEffect(() => {
    function onKeyDown(event: KeyboardEvent): void {
      if (document.querySelector("dialog[open]") !== null) return;
      if (event.key === "Escape") {
        const shown = newest(services, "assistant");
        const written = services.answering.underWayIn(services.store.activeId.value ?? "");
        const message = shown !== null && isUnderWay(shown) ? shown : written;
        if (message !== null) services.answering.stop(message);
        return;
      }
      if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      const shortcut = SHORTCUTS.find((each) => each.code === event.code);
      if (shortcut === undefined) return;
      event.preventDefault();
      shortcut.run(services);
    }
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
}

export function ShortcutsDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl class="shortcuts">
        {[...SHORTCUTS.map((each) => [each.shown, each.does] as const), ...PLAIN_KEYS].map(
          ([keys, does]) => (
            <div key={keys}>
              <dt>
                <kbd>{keys}</kbd>
              </dt>
              <dd>{does}</dd>
            </div>
          ),
        )}
      </dl>
    </Dialog>
  );
}

function newest({ store }: Services, role: MessageRecord["role"]): MessageRecord | null {
  const conversation = store.active;
  if (conversation === null) return null;
  return store.branch(conversation).findLast((cell) => cell.peek().role === role)?.peek() ?? null;
}

function neighbour({ store }: Services, step: number): void {
  const list = store.conversations.value;
  const index = list.findIndex((each) => each.id === store.activeId.value);
  const next = index < 0 ? list[0] : list[index + step];
  if (next !== undefined) void store.open(next.id);
}
