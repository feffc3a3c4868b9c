/** The sampling parameters that are numbers: what may stand in their fields, and what is wrong. */
import { whole } from "./measures";
import { LONGEST_ANSWER, type Sampling } from "./records";

export type NumberName = {
  [K in keyof Sampling]: Sampling[K] extends number | null ? K : never;
}[keyof Sampling];

export interface NumberField {
  readonly name: NumberName;
  readonly label: string;
  readonly isWhole?: boolean;
  /** min: least value. above: values are greater than it. */
  readonly min?: number;
  readonly above?: number;
  readonly max?: number;
  /** Stands in the empty field. */
  readonly hint: string;
}

export const NUMBER_FIELDS: readonly NumberField[] = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, hint: "0 is greedy" },
  { name: "top_p", label: "Top-p", above: 0, max: 1, hint: "above 0, up to 1" },
  { name: "top_k", label: "Top-k", isWhole: true, min: 0, hint: "0 keeps all" },
  { name: "min_p", label: "Min-p", min: 0, max: 1, hint: "0 to 1" },
  { name: "repetition_penalty", label: "Repetition penalty", above: 0, hint: "1 is none" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, hint: "−2 to 2" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, hint: "−2 to 2" },
  {
    name: "max_output_tokens",
    label: "Longest answer",
    isWhole: true,
    min: 1,
    hint: `${whole(LONGEST_ANSWER)} tokens`,
  },
  { name: "seed", label: "Seed", isWhole: true, min: 0, hint: "same seed, same text" },
  {
    name: "num_speculative_tokens",
    label: "Drafted tokens",
    isWhole: true,
    min: 0,
    max: 16,
    hint: "0 to 16",
  },
];

/** What is written in a field, as a value or as what is wrong with it. */
export type Parsed =
  | { readonly value: number | null; readonly problem: null }
  | { readonly value: null; readonly problem: string };

const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;

/** An empty field has no value, which leaves the choice to the page or the server. */
export function parseNumber(field: NumberField, text: string): Parsed {
  const written = text.trim().replace("−", "-");
  if (written === "") return { value: null, problem: null };
  const value = NUMBER.test(written) ? Number(written) : Number.NaN;
  const isRight =
    (field.isWhole ? Number.isSafeInteger(value) : Number.isFinite(value)) &&
    value >= (field.min ?? -Infinity) &&
    value > (field.above ?? -Infinity) &&
    value <= (field.max ?? Infinity);
  return isRight
    ? { value, problem: null }
    : { value: null, problem: `This must be ${rightFor(field)}, or empty.` };
}

/** The field's text for a value. */
export function writeNumber(value: number | null): string {
  return value === null ? "" : String(value);
}

/** In words, what a field takes. */
function rightFor({ isWhole, min, above, max }: NumberField): string {
  const number = isWhole ? "a whole number" : "a number";
  const show = (bound: number): string => String(bound).replace("-", "−");
  if (above !== undefined) {
    return `${number} above ${show(above)}${max === undefined ? "" : `, up to ${show(max)}`}`;
  }
  if (min !== undefined && max !== undefined) return `${number} from ${show(min)} to ${show(max)}`;
  return min === undefined ? number : `${number}, ${show(min)} or more`;
}
