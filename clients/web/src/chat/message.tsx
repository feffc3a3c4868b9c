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
import { measuresOf, plural, whole, whyOf } from "./measures";
import { editing, openDialog } from "./page";
import { type MessageRecord, isUnderWay } from "./records";
import { TokensView } from "./tokens_view";
import { variantsOf, versionBefore } from "./tree";

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
  return (
    <article class="message answer" aria-label="Answer" aria-busy={isRunning} data-last={isLast}>
      {message.text === "" && isRunning ? (
        <Awaited message={message} />
      ) : (
        message.note !== null && <p class="note">{message.note}</p>
      )}
      <Text message={message} />
      <Ending message={message} isLast={isLast} />
      {isRunning ? (
        <div class="actions">
          <Variants message={message} />
        </div>
      ) : (
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

function Text({ message }: { message: MessageRecord }) {
  if (message.text === "") return null;
  return originsView.value === "on" && message.tokens.length > 0 ? (
    <TokensView message={message} />
  ) : (
    <Markdown text={message.text} />
  );
}

/** Before an answer's first token. What a try that broke off had brought stays until then. */
function Awaited({ message }: { message: MessageRecord }) {
  const { connection, store } = useServices();
  const isReached = connection.state.value === "open" && !connection.isServerLeaving.value;
  const before =
    message.note === null
      ? null
      : versionBefore(store.messages(message.conversationId), message);
  return (
    <>
      {message.note !== null && (
        <p class="note">{before === null || isReached ? message.note : UNTIL_SERVER_IS_BACK}</p>
      )}
      {before !== null && (
        <div class="try-before" role="group" aria-label="The try before">
          <Text message={before} />
        </div>
      )}
      <p class="waiting">
        <span class="pulse" aria-hidden="true" />
        {isReached ? "Reading the prompt" : "Waiting for the server"}
      </p>
    </>
  );
}

const UNTIL_SERVER_IS_BACK =
  "This answer broke off. It is begun anew as soon as the server is back, and this try is kept.";

function Ending({ message, isLast }: { message: MessageRecord; isLast: boolean }) {
  switch (message.status) {
    case "cancelled":
      return <p class="ending">Stopped.</p>;
    case "cut":
      return <LengthEnding message={message} isLast={isLast} />;
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

/** Where a limit ended the answer: which, and what can be done for more. */
function LengthEnding({ message, isLast }: { message: MessageRecord; isLast: boolean }) {
  const { answering } = useServices();
  const { numTokens, maxTokens } = message;
  if (numTokens === null || maxTokens == null) {
    return <p class="ending">Stopped at the length limit.</p>;
  }
  if (numTokens < maxTokens) {
    return (
      <p class="ending">
        Stopped at the end of the model's context. A new conversation has room for more.
      </p>
    );
  }
  return (
    <p class="ending">
      Stopped at the limit of {whole(maxTokens)} {plural(maxTokens, "token")}.
      {isLast && (
        <>
          {" "}
          <button
            type="button"
            title={`Sends “${CONTINUE}” as your next message`}
            disabled={answering.isBusy(message.conversationId)}
            onClick={() => answering.ask(message.conversationId, CONTINUE)}
          >
            Continue
          </button>{" "}
          <button type="button" onClick={() => (openDialog.value = "settings")}>
            Change the limit
          </button>
        </>
      )}
    </p>
  );
}

const CONTINUE = "Continue where you stopped.";

function Measures({ message }: { message: MessageRecord }) {
  if (message.summary === null) return null;
  const why = whyOf(message.summary, message.numTokens);
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
