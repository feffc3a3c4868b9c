/** What is told under an answer: how fast it came, and what speculation did for it. */
import type { PacelineSummary, SourcedToken } from "../protocol.generated";

export interface Measure {
  readonly label: string;
  readonly value: string;
  /** In one sentence, for those who wonder. */
  readonly meaning: string;
}

/** The measures that a server gave; those that it has no number for are left out. */
export function measuresOf(summary: PacelineSummary, numTokens: number | null): Measure[] {
  const measures: Measure[] = [];
  const add = (label: string, value: string | null, meaning: string): void => {
    if (value !== null) measures.push({ label, value, meaning });
  };
  if (numTokens !== null) {
    const meaning = "Tokens of this answer, its end token included.";
    add(numTokens === 1 ? "token" : "tokens", whole(numTokens), meaning);
  }
  add(
    "tok/s",
    oneDecimal(summary.tokens_per_second),
    "Tokens of this answer in each second, from reading the prompt to its end; time in the queue " +
      "does not count.",
  );
  add(
    "first token",
    milliseconds(summary.time_to_first_token_ms),
    "From the request to its first token, time in the queue included.",
  );
  add(
    "accepted",
    percent(summary.acceptance),
    `The share of this answer's drafted tokens that passed: ${summary.num_examined} of ` +
      `${whole(summary.num_drafted)} drafted ${plural(summary.num_drafted, "token")} got tested by ` +
      "the large model; those behind a rejected one are dropped untested.",
  );
  add(
    "tokens/step",
    summary.tokens_per_step === null || !hasDecoded(numTokens)
      ? null
      : summary.tokens_per_step.toFixed(2),
    "Tokens for each pass of the large model; plain decoding makes 1.",
  );
  const gain = gainOf(summary);
  add(
    "vs plain",
    gain === null ? null : `${gain.toFixed(2)}×`,
    gain === null ? "" : gainInWords(summary, gain),
  );
  return measures;
}

/**
 * How many times faster than plain decoding, by the server's own measurements of both: below 1 is a
 * loss. null where the server has no estimate, or nothing was drafted.
 */
export function gainOf(summary: PacelineSummary): number | null {
  const plain = summary.expected_plain_ms;
  const taken = summary.draft_ms + summary.verify_ms + summary.sample_ms + summary.other_ms;
  if (plain === null || plain <= 0 || taken <= 0 || summary.num_drafted === 0) return null;
  return plain / taken;
}

function gainInWords(summary: PacelineSummary, gain: number): string {
  const plain = milliseconds(summary.expected_plain_ms) ?? "";
  const taken = milliseconds(
    summary.draft_ms + summary.verify_ms + summary.sample_ms + summary.other_ms,
  );
  const verdict = gain >= 1 ? "Speculation saved time" : "Speculation cost time";
  return `${verdict}: ${taken ?? ""} here, ${plain} by plain decoding as the server measured it.`;
}

/** A gate's reason alone; servers begin it with the gate's state. */
export function reasonAlone(reason: string): string {
  return reason.replace(/^(?:on|off|probing): /, "");
}

/** The cause alone: behind it, after a semicolon, stands what was measured. */
export function causeAlone(reason: string): string {
  return reasonAlone(reason).split("; ")[0] ?? "";
}

export interface Why {
  readonly cause: string;
  /** What the gate had measured: over the conversation, and so not the answer's own number. */
  readonly evidence: string | null;
}

/**
 * Why speculation was on or off when the answer ended; null when the server gave no reason, or none
 * of this answer.
 */
export function whyOf(summary: PacelineSummary, numTokens: number | null): Why | null {
  const [cause = "", ...measured] = reasonAlone(summary.reason).split("; ");
  if (cause === "" || !hasDecoded(numTokens)) return null;
  return {
    cause: `Speculation ${summary.gate}: ${cause}`,
    evidence:
      measured.length === 0 ? null : `In this conversation of late: ${measured.join("; ")}.`,
  };
}

/**
 * Whether there was a step that could have drafted. The first token comes with the prompt, so that
 * after it the session's gate and its rates still are those of the answer before.
 */
function hasDecoded(numTokens: number | null): boolean {
  return numTokens === null || numTokens > 1;
}

export type Source = SourcedToken["source"];

/** In the order of the legend. */
export const SOURCES: readonly Source[] = ["accepted", "residual", "bonus", "plain"];

export const SOURCE_MEANINGS: Record<Source, { label: string; meaning: string }> = {
  accepted: { label: "accepted", meaning: "drafted by the small model, accepted by the large one" },
  residual: { label: "corrected", meaning: "drawn by the large model in place of a rejected draft" },
  bonus: { label: "bonus", meaning: "drawn by the large model after a whole draft was accepted" },
  plain: { label: "plain", meaning: "decoded plainly, nothing was drafted" },
};

/** Number of tokens from each source. */
export function countSources(tokens: readonly SourcedToken[]): Record<Source, number> {
  const counts: Record<Source, number> = { accepted: 0, residual: 0, bonus: 0, plain: 0 };
  for (const token of tokens) counts[token.source] += 1;
  return counts;
}

/** 1,024 */
export function whole(value: number): string {
  return Math.round(value).toLocaleString("en");
}

/** A noun behind a number. */
export function plural(count: number, noun: string): string {
  return count === 1 ? noun : `${noun}s`;
}

export function oneDecimal(value: number | null): string | null {
  return value === null ? null : value.toFixed(value < 100 ? 1 : 0);
}

export function percent(value: number | null): string | null {
  return value === null ? null : `${Math.round(value * 100)} %`;
}

/** Three digits are enough. */
export function milliseconds(value: number | null): string | null {
  if (value === null) return null;
  if (value >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
