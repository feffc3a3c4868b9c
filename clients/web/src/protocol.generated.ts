// Generated from protocol/asyncapi.json by scripts/generate-protocol.mjs; do not edit.
// sha256 of the document: 92e7beee3311216df6993d5d35a17f470fbe0e0b17faf5ac89b2090415ed4b4c
export const PROTOCOL_VERSION = "1.0.0";

/**
 * Continue raw text, or fill in between `prompt` and `suffix`. The events are those of a response; no chat template is applied and nothing is kept for a next turn. suffix: even an empty one makes the two the surroundings of a gap: the model's own tokens for filling in are used if it has any, what does not fit is left out at the far ends, and the default length is short. Without it `prompt` must fit as it is. prompt: a text, or its token ids exactly as the model shall see them. top_logprobs: each text delta carries the log-probabilities of its tokens and of so many alternatives; 0 asks for those of the tokens alone.
 */
export interface CompletionCreate {
  type: "completion.create";
  prompt: string | number[];
  suffix?: string | null;
  max_output_tokens?: number | null;
  temperature?: number | null;
  top_p?: number | null;
  top_logprobs?: number | null;
  stream_id?: string | null;
  paceline?: PacelineOptions | null;
}
/**
 * What the OpenAI schema has no place for. null means the server's default. top_k: 0 keeps all tokens. logit_bias: from token id to what is added to its logit. speculation: `auto` lets the server's gates decide, with `num_speculative_tokens` as an upper bound; `on` drafts that many, or as many as the drafter can; `off` is plain decoding. include: `tokens` adds to each text delta the tokens behind it and where each came from. grammar: bounds the answer's text; `text.format` does the same for JSON in the OpenAI vocabulary. tool_format: how the model writes tool calls, where the server's reading of the chat template is wrong.
 */
export interface PacelineOptions {
  seed?: number | null;
  top_k?: number | null;
  min_p?: number | null;
  repetition_penalty?: number | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  logit_bias?: {
    [k: string]: number;
  } | null;
  min_tokens?: number | null;
  banned_token_ids?: number[] | null;
  stop?: string | string[] | null;
  stop_token_ids?: number[] | null;
  speculation?: ("auto" | "off" | "on") | null;
  num_speculative_tokens?: number | null;
  drafter?: ("auto" | "model" | "ngram" | "none") | null;
  include?: "tokens"[] | null;
  grammar?: GrammarOptions | null;
  tool_format?: ("generic" | "granite" | "hermes" | "llama" | "mistral") | null;
}
/**
 * What the whole answer must look like; exactly one field is set. regex: a regular expression (Rust's syntax, matched as a whole). choice: one of these texts. lark: a grammar in Lark's EBNF, from its rule `start`. json_schema: JSON that fits this schema.
 */
export interface GrammarOptions {
  regex?: string | null;
  choice?: string[] | null;
  lark?: string | null;
  json_schema?: {} | boolean | null;
}
export interface ContentPartAdded {
  type: "response.content_part.added";
  sequence_number: number;
  stream_id?: string;
  item_id: string;
  output_index: number;
  content_index: number;
  part: OutputText;
}
/**
 * Text from the model. `annotations` is always empty; official clients want it there.
 */
export interface OutputText {
  type: "output_text";
  text: string;
  annotations?: unknown[];
  logprobs?: Logprob[] | null;
}
/**
 * The emitted token at a position with its most probable alternatives.
 */
export interface Logprob {
  token: string;
  logprob: number;
  bytes: number[];
  top_logprobs: TopLogprob[];
}
/**
 * One alternative at a position. bytes: the token's bytes, also where they are no whole character. logprob: natural logarithm, under the target before any warping.
 */
export interface TopLogprob {
  token: string;
  logprob: number;
  bytes: number[];
}
export interface ContentPartDone {
  type: "response.content_part.done";
  sequence_number: number;
  stream_id?: string;
  item_id: string;
  output_index: number;
  content_index: number;
  part: OutputText;
}
/**
 * On a text delta when the request had `paceline.include: ["tokens"]`.
 */
export interface DeltaTokens {
  tokens: SourcedToken[];
}
/**
 * A committed token and where it came from: `accepted` (drafted and accepted), `residual` (drawn in place of a rejected draft), `bonus` (drawn after a full acceptance), `plain` (nothing was drafted). text: what became certain with it; it may be empty, and the texts of a delta's tokens join to the delta, except for text that was held back and is released without a token.
 */
export interface SourcedToken {
  id: number;
  text: string;
  source: "accepted" | "bonus" | "plain" | "residual";
}
/**
 * param: the path of what is wrong, as in `ProtocolError`.
 */
export interface ErrorDetails {
  type: string;
  code: string;
  message: string;
  param: string | null;
}
/**
 * A client event was refused; nothing else will answer it, and the connection lives on. sequence_number: always null, no response was running for it.
 */
export interface ErrorEvent {
  type: "error";
  status: number;
  error: ErrorDetails;
  sequence_number: number | null;
  stream_id?: string;
}
/**
 * The model called a function. arguments: JSON text, as the model wrote it.
 */
export interface FunctionCall {
  type: "function_call";
  call_id: string;
  name: string;
  arguments: string;
  id?: string | null;
  status?: ("completed" | "in_progress" | "incomplete") | null;
}
/**
 * More of the call's arguments.
 */
export interface FunctionCallArgumentsDelta {
  type: "response.function_call_arguments.delta";
  sequence_number: number;
  stream_id?: string;
  item_id: string;
  output_index: number;
  delta: string;
}
/**
 * The whole arguments: JSON text, as the model wrote it.
 */
export interface FunctionCallArgumentsDone {
  type: "response.function_call_arguments.done";
  sequence_number: number;
  stream_id?: string;
  item_id: string;
  output_index: number;
  name: string;
  arguments: string;
}
/**
 * What the called function returned.
 */
export interface FunctionCallOutput {
  type: "function_call_output";
  call_id: string;
  output: string | (InputText | OutputText | Refusal)[];
  id?: string | null;
  status?: ("completed" | "in_progress" | "incomplete") | null;
}
/**
 * Text from outside.
 */
export interface InputText {
  type: "input_text";
  text: string;
}
/**
 * A refusal that another server wrote, sent back as history.
 */
export interface Refusal {
  type: "refusal";
  refusal: string;
}
export interface IncompleteDetails {
  reason: "content_filter" | "max_output_tokens";
}
/**
 * cached_tokens: prompt tokens whose K/V was found. cache_write_tokens: always 0, we charge nothing for writing; official clients want it there.
 */
export interface InputTokensDetails {
  cached_tokens: number;
  cache_write_tokens: number;
}
/**
 * A message of the conversation. On input `type` may be left out.
 */
export interface MessageItem {
  type?: "message";
  role: "assistant" | "developer" | "system" | "user";
  content: string | (InputText | OutputText | Refusal)[];
  id?: string | null;
  status?: ("completed" | "in_progress" | "incomplete") | null;
}
export interface OutputItemAdded {
  type: "response.output_item.added";
  sequence_number: number;
  stream_id?: string;
  output_index: number;
  item: OutputMessage | FunctionCall | Reasoning;
}
/**
 * The model's message.
 */
export interface OutputMessage {
  type: "message";
  id: string;
  status: "completed" | "in_progress" | "incomplete";
  content: OutputText[];
  role: "assistant";
}
/**
 * The model's thoughts before its answer. `summary` is always empty; official clients want it there. Sent back as history it adds nothing to the prompt.
 */
export interface Reasoning {
  type: "reasoning";
  id?: string | null;
  summary?: unknown[];
  content?: ReasoningText[] | null;
  status?: ("completed" | "in_progress" | "incomplete") | null;
}
/**
 * What the model wrote while it was thinking.
 */
export interface ReasoningText {
  type: "reasoning_text";
  text: string;
}
export interface OutputItemDone {
  type: "response.output_item.done";
  sequence_number: number;
  stream_id?: string;
  output_index: number;
  item: OutputMessage | FunctionCall | Reasoning;
}
/**
 * More text: always whole characters, often of several tokens.
 */
export interface OutputTextDelta {
  type: "response.output_text.delta";
  sequence_number: number;
  stream_id?: string;
  item_id: string;
  output_index: number;
  content_index: number;
  delta: string;
  logprobs: Logprob[];
  paceline?: DeltaTokens;
}
/**
 * The whole text.
 */
export interface OutputTextDone {
  type: "response.output_text.done";
  sequence_number: number;
  stream_id?: string;
  item_id: string;
  output_index: number;
  content_index: number;
  text: string;
  logprobs: Logprob[];
}
export interface OutputTokensDetails {
  reasoning_tokens: number;
}
/**
 * What speculation did for one response. num_examined: drafted positions tested up to the first failure of each round. acceptance: the share of them that passed, by the token rule whatever rule was used; None when nothing was examined. accepted_per_position[i]: how often the draft's position i became output. examined_per_position[i], passed_per_position[i]: how often it was tested, and passed, by the token rule. tokens_per_step: committed tokens per target pass, 1 for plain decoding. tokens_per_second: of the time from the prompt's first step to the end. The *_ms fields are this response's share of wall time; expected_plain_ms is what plain decoding would have taken by the server's cost table, None while there is none.
 */
export interface PacelineSummary {
  num_drafted: number;
  num_examined: number;
  num_accepted: number;
  acceptance: number | null;
  tokens_per_step: number | null;
  accepted_per_position: number[];
  examined_per_position: number[];
  passed_per_position: number[];
  drafter: string;
  gate: "off" | "on" | "probing";
  reason: string;
  time_to_first_token_ms: number | null;
  tokens_per_second: number | null;
  draft_ms: number;
  verify_ms: number;
  sample_ms: number;
  other_ms: number;
  cached_tokens: number;
  expected_plain_ms: number | null;
}
/**
 * More of what the model thinks.
 */
export interface ReasoningTextDelta {
  type: "response.reasoning_text.delta";
  sequence_number: number;
  stream_id?: string;
  item_id: string;
  output_index: number;
  content_index: number;
  delta: string;
}
/**
 * The whole thought.
 */
export interface ReasoningTextDone {
  type: "response.reasoning_text.done";
  sequence_number: number;
  stream_id?: string;
  item_id: string;
  output_index: number;
  content_index: number;
  text: string;
}
/**
 * One response. created_at, completed_at: seconds since 1970. Fields that a finished response holds and a running one doesn't yet are null.
 */
export interface Response {
  id: string;
  created_at: number;
  model: string;
  status: "cancelled" | "completed" | "failed" | "in_progress" | "incomplete" | "queued";
  output: (OutputMessage | FunctionCall | Reasoning)[];
  object: "response";
  background: boolean;
  completed_at: number | null;
  error: ResponseError | null;
  incomplete_details: IncompleteDetails | null;
  instructions: string | null;
  max_output_tokens: number | null;
  metadata: {
    [k: string]: string;
  };
  parallel_tool_calls: boolean;
  previous_response_id: string | null;
  store: boolean;
  temperature: number | null;
  tool_choice: unknown;
  tools: unknown[];
  top_logprobs: number | null;
  top_p: number | null;
  truncation: "disabled";
  usage: ResponseUsage | null;
  paceline: PacelineSummary | null;
}
/**
 * Why a response failed. code: one of those that official clients know. type: our own finer code (an `ErrorCode`).
 */
export interface ResponseError {
  code: "invalid_prompt" | "rate_limit_exceeded" | "server_error";
  message: string;
  type: string | null;
}
/**
 * Token counts. Output tokens are the committed ones; drafts that were rejected don't count.
 */
export interface ResponseUsage {
  input_tokens: number;
  input_tokens_details: InputTokensDetails;
  output_tokens: number;
  output_tokens_details: OutputTokensDetails;
  total_tokens: number;
}
/**
 * Stop a response: by its id, or whatever runs and waits in a lane. It ends with `response.incomplete`, status `cancelled`.
 */
export interface ResponseCancel {
  type: "response.cancel";
  response_id?: string | null;
  stream_id?: string | null;
}
/**
 * The model ended its answer, or a stop string did.
 */
export interface ResponseCompleted {
  type: "response.completed";
  sequence_number: number;
  stream_id?: string;
  response: Response;
}
/**
 * Ask for a response. generate: false prepares the prompt's state and returns a response without output. previous_response_id: continue after that response of this connection; instructions are not inherited. tools, tool_choice, text, background, conversation and prompt are kept as they came: they would change the answer, and a server that does not serve them refuses them by name.
 */
export interface ResponseCreate {
  type: "response.create";
  input?: string | (MessageItem | FunctionCall | FunctionCallOutput | Reasoning)[] | null;
  model?: string | null;
  instructions?: string | null;
  previous_response_id?: string | null;
  max_output_tokens?: number | null;
  temperature?: number | null;
  top_p?: number | null;
  top_logprobs?: number | null;
  include?: string[] | null;
  metadata?: {
    [k: string]: string;
  } | null;
  generate?: boolean | null;
  store?: boolean | null;
  parallel_tool_calls?: boolean | null;
  stream_id?: string | null;
  paceline?: PacelineOptions | null;
  tools?: unknown;
  tool_choice?: unknown;
  text?: unknown;
  background?: unknown;
  conversation?: unknown;
  prompt?: unknown;
}
/**
 * The request was taken.
 */
export interface ResponseCreated {
  type: "response.created";
  sequence_number: number;
  stream_id?: string;
  response: Response;
}
/**
 * `response.error` says why. Text that was sent before stands.
 */
export interface ResponseFailed {
  type: "response.failed";
  sequence_number: number;
  stream_id?: string;
  response: Response;
}
/**
 * The engine has it.
 */
export interface ResponseInProgress {
  type: "response.in_progress";
  sequence_number: number;
  stream_id?: string;
  response: Response;
}
/**
 * Cut off: by a length limit (`incomplete_details.reason`), or by the client (status `cancelled`).
 */
export interface ResponseIncomplete {
  type: "response.incomplete";
  sequence_number: number;
  stream_id?: string;
  response: Response;
}
/**
 * The engine as a whole. The step is the one that the sessions' times are shares of. tokens_per_second: over the last two seconds. num_rows: token rows in the step's target pass. predicted_step_ms: by the cost table, None while there is none. break_even_rows: above it a step is compute-bound and drafting cannot pay.
 */
export interface ServerTelemetry {
  num_sessions: number;
  num_running: number;
  num_waiting: number;
  num_blocks: number;
  num_free_blocks: number;
  num_cached_blocks: number;
  num_rows: number;
  tokens_per_second: number | null;
  draft_ms: number;
  verify_ms: number;
  sample_ms: number;
  other_ms: number;
  measured_step_ms: number | null;
  predicted_step_ms: number | null;
  break_even_rows: number | null;
}
/**
 * One lane of one connection, as of its last step. session_id: the connection. lane: its `stream_id`, None for the lane without a name. active: a response is running. reason: why the gate is where it is: the gate, a colon, the cause, and behind a semicolon what was measured of the session lately, if anything. acceptance: over the last examined positions, 64 at most; None before any. accepted_per_position[i]: how often a draft's position i became output. examined_per_position[i], passed_per_position[i]: how often it was tested, and passed, by the token rule whatever rule was used; passed / examined is the acceptance at that depth. gamma_histogram[g]: steps that drafted g tokens. tokens_per_step: committed tokens per target pass. tokens_per_second: over the last two seconds. The *_ms fields are this lane's share of the server's step that is told with it, 0 if it took no part in that.
 */
export interface SessionTelemetry {
  session_id: string;
  lane: string | null;
  active: boolean;
  gate: "off" | "on" | "probing";
  reason: string;
  drafter: string;
  acceptance: number | null;
  accepted_per_position: number[];
  examined_per_position: number[];
  passed_per_position: number[];
  gamma_histogram: number[];
  tokens_per_step: number | null;
  tokens_per_second: number | null;
  time_to_first_token_ms: number | null;
  draft_ms: number;
  verify_ms: number;
  sample_ms: number;
  other_ms: number;
}
/**
 * The state at one moment; a slow reader gets fewer samples, always the latest. time: seconds since 1970. sessions: this connection's lanes, or those of all connections in scope `server`. server: only in scope `server`. sequence_number: counts the connection's samples. ledger_level_ms: what speculation has cost beyond its allowance, in milliseconds; 0 is the usual state. ledger_capacity_ms: from where on drafting pauses.
 */
export interface TelemetrySample {
  type: "telemetry.sample";
  sequence_number: number;
  stream_id?: string;
  scope: "server" | "session";
  time: number;
  sessions: SessionTelemetry[];
  ledger_level_ms: number | null;
  ledger_capacity_ms: number | null;
  server: ServerTelemetry | null;
}
/**
 * Ask for `telemetry.sample` events: of this connection's lanes, or of the whole server (for admins). A second subscription to the same scope replaces the first.
 */
export interface TelemetrySubscribe {
  type: "telemetry.subscribe";
  scope?: "server" | "session";
  interval_ms?: number;
  stream_id?: string | null;
}
/**
 * End the subscription to a scope; nothing happens if there is none.
 */
export interface TelemetryUnsubscribe {
  type: "telemetry.unsubscribe";
  scope?: "server" | "session";
  stream_id?: string | null;
}

export type ClientEvent =
  | ResponseCreate
  | CompletionCreate
  | ResponseCancel
  | TelemetrySubscribe
  | TelemetryUnsubscribe;

export type ServerEvent =
  | ResponseCreated
  | ResponseInProgress
  | OutputItemAdded
  | ContentPartAdded
  | OutputTextDelta
  | OutputTextDone
  | FunctionCallArgumentsDelta
  | FunctionCallArgumentsDone
  | ReasoningTextDelta
  | ReasoningTextDone
  | ContentPartDone
  | OutputItemDone
  | ResponseCompleted
  | ResponseIncomplete
  | ResponseFailed
  | ErrorEvent
  | TelemetrySample;
