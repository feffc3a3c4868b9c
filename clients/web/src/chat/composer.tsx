/** Where a message is written. */
import { useEffect, useRef, useState } from "preact/hooks";
import { IconButton } from "../shell/icons";
import { useServices } from "../shell/services";
import type { ConnectionState } from "../wire/connection";
import { useTouch } from "./hooks";
import { editing } from "./page";
import { type ConversationRecord, isUnderWay } from "./records";

const COMPOSER_ID = "composer";

export function focusComposer(): void {
  // After the change that brings the composer onto the page.
  setTimeout(() => document.getElementById(COMPOSER_ID)?.focus(), 0);
}

/** What was written and not sent, by conversation; a reload of the tab keeps it. */
const drafts = {
  read(key: string): string {
    try {
      return sessionStorage.getItem(`paceline.draft.${key}`) ?? "";
    } catch {
      return "";
    }
  },
  write(key: string, text: string): void {
    try {
      if (text === "") sessionStorage.removeItem(`paceline.draft.${key}`);
      else sessionStorage.setItem(`paceline.draft.${key}`, text);
    } catch {
      /* it then lives as long as the field */
    }
  },
};

export function Composer({ conversation }: { conversation: ConversationRecord | null }) {
  const { store, answering, connection } = useServices();
  const key = conversation?.id ?? "";
  const [text, setText] = useState(() => drafts.read(key));
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => setText(drafts.read(key)), [key]);
  useEffect(() => fit(area.current), [text]);

  const last = conversation === null ? undefined : store.branch(conversation).at(-1)?.value;
  // Another version of an answer may be shown than the one that is being written.
  const shown = last !== undefined && isUnderWay(last) ? last : null;
  const running = shown ?? (conversation && answering.underWayIn(conversation.id));
  const state = connection.state.value;
  const isTouch = useTouch();

  function change(value: string): void {
    drafts.write(key, value);
    setText(value);
  }

  function send(): void {
    if (text.trim() === "" || running !== null) return;
    const target = conversation ?? store.create();
    drafts.write(key, "");
    setText("");
    answering.ask(target.id, text);
  }

  function onKeyDown(event: KeyboardEvent): void {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && text === "" && conversation !== null) {
      const own = store.branch(conversation).findLast((cell) => cell.value.role === "user");
      if (own !== undefined && running === null) {
        event.preventDefault();
        editing.value = own.value.id;
      }
    }
  }

  return (
    <form
      class="composer"
      aria-label="Write a message"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div class="composer-box">
        <label class="sr-only" for={COMPOSER_ID}>
          Message
        </label>
        <textarea
          id={COMPOSER_ID}
          ref={area}
          rows={1}
          placeholder="Message"
          value={text}
          autofocus
          enterkeyhint="send"
          onInput={(event) => change(event.currentTarget.value)}
          onKeyDown={onKeyDown}
        />
        {running !== null ? (
          <IconButton
            icon="stop"
            label="Stop (Escape)"
            class="round"
            onClick={() => answering.stop(running)}
          />
        ) : (
          <IconButton
            icon="send"
            label="Send (Enter)"
            class="round"
            disabled={text.trim() === ""}
            onClick={send}
          />
        )}
      </div>
      <p class="composer-note" aria-live="polite">
        {noteFor(state, connection.isServerLeaving.value) ??
          (isTouch ? "" : "Enter sends, Shift+Enter begins a line.")}
      </p>
    </form>
  );
}

/** What becomes of a message that is sent now; null where it is simply sent. */
function noteFor(state: ConnectionState, isServerLeaving: boolean): string | null {
  switch (state) {
    case "lost":
    case "connecting":
      return "No connection at the moment. What you send goes out as soon as there is one.";
    case "needs_key":
      return "The server asks for a key.";
    default:
      return isServerLeaving
        ? "The server is shutting down. What you send goes out as soon as it is back."
        : null;
  }
}

function fit(area: HTMLTextAreaElement | null): void {
  if (area === null) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
