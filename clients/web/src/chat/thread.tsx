/** The messages of the shown branch. Follows the end while the reader is there. */
import type { Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { IconButton } from "../shell/icons";
import { useServices } from "../shell/services";
import { Announcer } from "./announcer";
import { focusComposer } from "./composer";
import { Message } from "./message";
import { type ConversationRecord, type MessageRecord, isUnderWay } from "./records";

const NEAR_END_PX = 80;
const EXAMPLES = [
  "Explain speculative decoding in three sentences.",
  "Write a Python function that checks whether a word is a palindrome.",
  "List five ideas for a quiet weekend.",
];

export function Thread({ conversation }: { conversation: ConversationRecord | null }) {
  const { store } = useServices();
  const cells = conversation === null ? [] : store.branch(conversation);
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const isFollowing = useRef(true);
  const [isAway, setAway] = useState(false);

  function toEnd(): void {
    const element = scroller.current;
    if (element) element.scrollTop = element.scrollHeight;
  }

  // Another conversation, or another message: go to its end.
  useLayoutEffect(() => {
    isFollowing.current = true;
    setAway(false);
    toEnd();
  }, [conversation?.id, cells.length]);

  useEffect(() => {
    if (content.current === null) return;
    const observer = new ResizeObserver(() => {
      if (isFollowing.current) toEnd();
    });
    observer.observe(content.current);
    return () => observer.disconnect();
  }, []);

  function onScroll(): void {
    const element = scroller.current;
    if (element === null) return;
    const gap = element.scrollHeight - element.scrollTop - element.clientHeight;
    isFollowing.current = gap < NEAR_END_PX;
    setAway(!isFollowing.current);
  }

  const last = cells.at(-1);
  return (
    <div class="thread-frame">
      <div
        class="thread"
        ref={scroller}
        onScroll={onScroll}
        tabIndex={0}
        role="region"
        aria-label="Messages"
      >
        <div class="thread-content" ref={content}>
          {cells.length === 0 ? (
            <Welcome conversation={conversation} />
          ) : (
            cells.map((cell, index) => (
              <Message key={cell.peek().id} cell={cell} isLast={index === cells.length - 1} />
            ))
          )}
        </div>
      </div>
      {isAway && (
        <IconButton
          icon="down"
          label="To the newest message"
          class="round to-end"
          onClick={() => {
            isFollowing.current = true;
            toEnd();
          }}
        />
      )}
      {last !== undefined && <Spoken key={last.peek().id} cell={last} />}
    </div>
  );
}

function Welcome({ conversation }: { conversation: ConversationRecord | null }) {
  const { store, answering, connection } = useServices();
  const model = connection.model.value;
  return (
    <div class="welcome">
      <h2>What shall we talk about?</h2>
      <p>
        {model === null ? "The model" : model.id.split("/").at(-1)} answers here. Drafted tokens may
        run ahead of it, yet the answer is always one that it would have given alone; turn on{" "}
        <em>Token origins</em> to watch.
      </p>
      <ul>
        {EXAMPLES.map((example) => (
          <li key={example}>
            <button
              type="button"
              onClick={() => {
                answering.ask((conversation ?? store.create()).id, example);
                focusComposer();
              }}
            >
              {example}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Tells a screen reader the answer, sentence by sentence as it arrives. */
function Spoken({ cell }: { cell: Signal<MessageRecord> }) {
  const region = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isUnderWay(cell.peek())) return; // it was there before
    const announcer = new Announcer();
    const say = (text: string): void => {
      if (text === "" || region.current === null) return;
      const line = document.createElement("p");
      line.textContent = text;
      region.current.append(line);
      while (region.current.childElementCount > 3) region.current.firstElementChild?.remove();
    };
    return cell.subscribe((message) => {
      if (message.role !== "assistant") return;
      if (isUnderWay(message)) say(announcer.grow(message.text));
      else say(`${announcer.finish(message.text)} ${END_WORDS[message.status] ?? ""}`.trim());
    });
  }, [cell]);
  return <div class="sr-only" aria-live="polite" ref={region} />;
}

const END_WORDS: Partial<Record<MessageRecord["status"], string>> = {
  done: "End of the answer.",
  cancelled: "Stopped.",
  cut: "Stopped at the length limit.",
  interrupted: "The answer broke off.",
  failed: "The answer failed.",
};
