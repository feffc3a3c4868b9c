/** Errors as people read them. */

/** What helps, by the error's code. */
const ADVICE: Record<string, string> = {
  context_length_exceeded: "Shorten the message, or begin a new conversation.",
  message_too_large: "Shorten the message, or begin a new conversation.",
};

/** A server's message as a sentence, with what can be done about it. */
export function errorInWords(code: string | null, message: string): string {
  const advice = code === null ? undefined : ADVICE[code];
  return advice === undefined ? sentence(message) : `${sentence(message)} ${advice}`;
}

/** Begun and ended as one. The name of a field at its beginning stays as it is. */
function sentence(message: string): string {
  const text = message.trim();
  const begun = /^[a-z]+(?:'[a-z]+)?(?=[\s,;:]|$)/.test(text)
    ? text.charAt(0).toUpperCase() + text.slice(1)
    : text;
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}
