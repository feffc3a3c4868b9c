/** From a conversation's settings to the request that the server understands. */
import type { PacelineOptions, ResponseCreate } from "../protocol.generated";
import {
  type ConversationRecord,
  LONGEST_ANSWER,
  type MessageRecord,
  type Sampling,
} from "./records";
import { itemsOf } from "./tree";

/** How far the server already holds the conversation: `index` counts messages of the path. */
export interface HeldPrefix {
  readonly responseId: string;
  readonly index: number;
}

/**
 * The request for an answer after `path`. held: the last answer on it that this connection's server
 * side remembers; only what follows it is sent. Values that are not set are left out, but for the
 * longest answer.
 */
export function requestFor(
  conversation: ConversationRecord,
  path: readonly MessageRecord[],
  held: HeldPrefix | null,
): ResponseCreate {
  const { sampling } = conversation;
  const request: ResponseCreate = {
    type: "response.create",
    input: itemsOf(held === null ? path : path.slice(held.index + 1)),
    max_output_tokens: sampling.max_output_tokens ?? LONGEST_ANSWER,
    paceline: pacelineOptions(sampling),
  };
  if (held !== null) request.previous_response_id = held.responseId;
  if (conversation.instructions.trim() !== "") request.instructions = conversation.instructions;
  if (sampling.temperature !== null) request.temperature = sampling.temperature;
  if (sampling.top_p !== null) request.top_p = sampling.top_p;
  return request;
}

const PACELINE_NAMES = [
  "top_k",
  "min_p",
  "repetition_penalty",
  "presence_penalty",
  "frequency_penalty",
  "seed",
  "speculation",
  "num_speculative_tokens",
  "drafter",
] as const satisfies readonly (keyof Sampling & keyof PacelineOptions)[];

function pacelineOptions(sampling: Sampling): PacelineOptions {
  const options: Record<string, unknown> = { include: ["tokens"] };
  for (const name of PACELINE_NAMES) {
    if (sampling[name] !== null) options[name] = sampling[name];
  }
  if (sampling.stop.length > 0) options["stop"] = sampling.stop;
  return options as PacelineOptions;
}
