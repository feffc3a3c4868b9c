/** The words of this page in plain ones: hints where they stand, and a list of all at the end. */

export const MEANINGS = {
  acceptance:
    "Of the drafted tokens that the large model tested, the share that passed: over the last 64 " +
    "tested of a session. The share of one answer stands under it in the chat.",
  drafted:
    "How many tokens are drafted before the large model tests them all in one pass: the mean of " +
    "the latest steps.",
  perStep: "Tokens gained with each pass of the large model; plain decoding gains one.",
  speed:
    "Tokens in each second of the last two. The speed of one whole answer stands under it in the " +
    "chat.",
  first: "From a request to its first token, time in the queue included.",
  step:
    "One pass of the large model for all running sessions together, with the drafting before and " +
    "the sampling after it. Predicted: what the server expected of it.",
  gate:
    "On: tokens are drafted. Off: not for now, since it would not pay. Probing: a short trial " +
    "whether it would pay again.",
  rows:
    "Tokens that go through the large model in one step. With many, testing a draft is no longer " +
    "nearly free: the server is compute-bound, and drafts less.",
  blocks:
    "Memory for what the model has read and written. Cached blocks serve the next prompt that " +
    "begins in the same way.",
  connections:
    "Sockets that are open now, of pages that only look on too. The table lists sessions: each " +
    "conversation of a connection is one, and stays listed for a while after its connection has " +
    "ended.",
  done:
    "The last answer has ended, and the numbers are as of then. The connection may be open or " +
    "ended; the server does not tell which.",
  ledger:
    "Time that drafting has lately lost against plain decoding, beyond the 3 % that it may. Near " +
    "a limit of two full steps drafting pauses for everybody until that is made up for; 0 is best.",
  examined:
    "Tested: a drafted token whose fate the large model decided. Those behind a rejected one are " +
    "dropped untested.",
} as const;

const LIST: readonly (readonly [string, keyof typeof MEANINGS])[] = [
  ["Connections and sessions", "connections"],
  ["Done", "done"],
  ["Acceptance", "acceptance"],
  ["Tested", "examined"],
  ["Drafted", "drafted"],
  ["Tokens per step", "perStep"],
  ["Tokens per second", "speed"],
  ["First token", "first"],
  ["Step", "step"],
  ["Rows", "rows"],
  ["Gate", "gate"],
  ["Blocks", "blocks"],
  ["Ledger", "ledger"],
];

export function Meanings() {
  return (
    <details class="meanings">
      <summary>What these words mean</summary>
      <dl>
        {LIST.map(([word, name]) => (
          <div key={word}>
            <dt>{word}</dt>
            <dd>{MEANINGS[name]}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
