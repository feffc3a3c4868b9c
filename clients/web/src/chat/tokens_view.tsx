/** An answer as the tokens that it was made of, each coloured and marked by where it came from. */
import { memo } from "preact/compat";
import type { SourcedToken } from "../protocol.generated";
import { SOURCES, SOURCE_MEANINGS, countSources } from "./measures";
import type { MessageRecord } from "./records";

/** Finished pieces of this many tokens are not compared again while the answer grows. */
const PIECE = 64;

export function TokensView({ message }: { message: MessageRecord }) {
  const pieces: SourcedToken[][] = [];
  for (let start = 0; start < message.tokens.length; start += PIECE) {
    pieces.push(message.tokens.slice(start, start + PIECE));
  }
  const tokenText = message.tokens.reduce((length, token) => length + token.text.length, 0);
  const counts = countSources(message.tokens);
  return (
    <>
      <div class="tokens">
        {pieces.map((piece, index) => (
          <Piece key={index} tokens={piece} />
        ))}
        {/* Text that was held back for a stop string and came without a token. */}
        {message.text.slice(tokenText)}
      </div>
      <ul class="legend" aria-label="Where the tokens came from">
        {SOURCES.filter((source) => counts[source] > 0).map((source) => (
          <li key={source} title={SOURCE_MEANINGS[source].meaning}>
            <span class="swatch" data-source={source} aria-hidden="true" />
            {SOURCE_MEANINGS[source].label} <b>{counts[source]}</b>
          </li>
        ))}
      </ul>
    </>
  );
}

const Piece = memo(
  function Piece({ tokens }: { tokens: readonly SourcedToken[] }) {
    return (
      <>
        {tokens.map((token, index) =>
          token.text === "" ? null : (
            <span
              key={index}
              data-source={token.source}
              title={`${SOURCE_MEANINGS[token.source].label}, token ${token.id}`}
            >
              {token.text}
            </span>
          ),
        )}
      </>
    );
  },
  (before, after) =>
    before.tokens.length === after.tokens.length && before.tokens[0] === after.tokens[0],
);
