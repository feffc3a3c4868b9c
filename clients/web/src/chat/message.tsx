/** One message, with what can be done with it. */
import type { Signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { Markdown } from "../markdown/markdown";
import { originsView } from "../shell/browser_state";
import { CopyButton } from "../shell/copy_button";
import { IconButton } from "../shell/icons";
import { useServices } from "../shell/services";
import { focusComposer } from "./composer";
import { useEachFrame } from "./hooks";
import { measuresOf, whyOf } from "./measures";
import { editing } from "./page";
import { type MessageRecord, isUnderWay } from "./records";
import { TokensView } from "./tokens_view";
import { variantsOf } from "./tree";

export function Message({ cell, isLast }: { cell: Signal<MessageRecord>; isLast: boolean }) {
  return cell.peek().role === "user" ? (
    <Question cell={cell} />
  ) : (
    <Answer cell={cell} isLast={isLast} />
  );
}

function Question({ cell }: { cell: Signal<MessageRecord> }) {
  const { answering } = useServices();
  const message = cell.value;
  if (editing.value === message.id) return <Editor message={message} />;
  return (
    <article class="message question" aria-label="You">
      <div class="question-text">{message.text}</div>
      <div class="actions">
        <Variants message={message} />
        <CopyButton text={message.text} label="Copy the message" />
        <IconButton
          icon="edit"
          label="Edit and send again"
          disabled={answering.isBusy(message.conversationId)}
          onClick={() => (editing.value = message.id)}
        />
      </div>
    </article>
  );
}

function Editor({ message }: { message: MessageRecord }) {
  const { answering } = useServices();
  const [text, setText] = useState(message.text);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    area.current?.focus();
    area.current?.setSelectionRange(text.length, text.length);
  }, []);

  function close(): void {
    editing.value = null;
    focusComposer();
  }

  function send(): void {
    if (text.trim() === "") return;
    close();
    answering.edit(message, text);
  }

  return (
    <form
      class="editor"
      aria-label="Edit the message"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={area}
        aria-label="Message"
        rows={Math.min(12, text.split("\n").length + 1)}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          } else if (event.key === "Escape") {
            event.stopPropagation();
            close();
          }
        }}
      />
      <div class="form-actions">
        <button type="button" onClick={close}>
          Leave as it was
        </button>
        <button type="submit" class="primary" disabled={text.trim() === ""}>
          Send
        </button>
      </div>
    </form>
  );
}

function Answer({ cell, isLast }: { cell: Signal<MessageRecord>; isLast: boolean }) {
  const { answering } = useServices();
  const message = useEachFrame(cell);
  const isRunning = isUnderWay(message);
  const showsTokens = originsView.value === "on" && message.tokens.length > 0;
  return (
    <article class="message answer" aria-label="Answer" aria-busy={isRunning} data-last={isLast}>
      {message.note !== null && <p class="note">{message.note}</p>}
      {message.text === "" && isRunning && <Waiting />}
      {message.text !== "" &&
        (showsTokens ? <TokensView message={message} /> : <Markdown text={message.text} />)}
      <Ending message={message} />
      {!isRunning && (
        <>
          {message.summary !== null && <Measures message={message} />}
          <div class="actions">
            <Variants message={message} />
            <CopyButton text={message.text} label="Copy the answer" />
            <IconButton
              icon="again"
              label="Answer again"
              disabled={answering.isBusy(message.conversationId)}
              onClick={() => answering.regenerate(message)}
            />
          </div>
        </>
      )}
    </article>
  );
}

function Waiting() {
  const { connection } = useServices();
  const isOpen = connection.state.value === "open";
  return (
    <p class="waiting">
      <span class="pulse" aria-hidden="true" />
      {isOpen ? "Reading the prompt" : "Waiting for the server"}
    </p>
  );
}

function Ending({ message }: { message: MessageRecord }) {
  switch (message.status) {
    case "cancelled":
      return <p class="ending">Stopped.</p>;
    case "cut":
      return <p class="ending">Cut at the length limit. Raise it in the settings for more.</p>;
    case "interrupted":
      return <p class="ending">The answer broke off here.</p>;
    case "failed":
      return (
        <p class="ending problem" role="alert">
          {message.error ?? "The answer failed."}
        </p>
      );
    default:
      return null;
  }
}

function Measures({ message }: { message: MessageRecord }) {
  if (message.summary === null) return null;
  const why = whyOf(message.summary);
  return (
    <>
      <dl class="measures" aria-label="How this answer was made">
        {measuresOf(message.summary, message.numTokens).map((measure) => (
          <div key={measure.label} title={measure.meaning}>
            <dt>{measure.label}</dt>
            <dd>{measure.value}</dd>
          </div>
        ))}
      </dl>
      {why !== null && (
        <p class="why" title={why.evidence ?? undefined}>
          {why.cause}
        </p>
      )}
    </>
  );
}

/** Which of several versions is shown. */
function Variants({ message }: { message: MessageRecord }) {
  const { store } = useServices();
  const variants = variantsOf(store.messages(message.conversationId), message);
  if (variants.length < 2) return null;
  const index = variants.findIndex((each) => each.id === message.id);
  const show = (target: MessageRecord | undefined): void => {
    if (target) store.showBranch(message.conversationId, target.id);
  };
  return (
    <span class="variants" role="group" aria-label="Versions">
      <IconButton
        icon="left"
        label="The version before"
        disabled={index === 0}
        onClick={() => show(variants[index - 1])}
      />
      <span>
        {index + 1} of {variants.length}
      </span>
      <IconButton
        icon="right"
        label="The next version"
        disabled={index === variants.length - 1}
        onClick={() => show(variants[index + 1])}
      />
    </span>
  );
}
