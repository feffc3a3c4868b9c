import { milliseconds, whole } from "../chat/measures";
import type { SessionTelemetry } from "../protocol.generated";

export { whole };
export const one = (value: number): string => (value < 100 ? value.toFixed(1) : whole(value));
export const two = (value: number): string => value.toFixed(2);
export const ms = (value: number): string => milliseconds(value) ?? "";
export const share = (value: number): string => `${Math.round(value * 100)} %`;

/** The time of day; seconds: since 1970. */
export const clock = (seconds: number): string =>
  new Date(seconds * 1000).toLocaleTimeString("en-GB");

/** A dash where the server has no number. */
export function or(value: number | null, format: (value: number) => string): string {
  return value === null ? "–" : format(value);
}

/** A session's state. Of one that rests the last answer has ended; its connection may have, too. */
export function stateOf(session: SessionTelemetry): "answering" | "done" {
  return session.active ? "answering" : "done";
}

/** The gate as it is, or as it was at the last step of a session that rests. */
export function gateOf(session: SessionTelemetry): string {
  return session.active ? session.gate : `was ${session.gate}`;
}

const SHORT_ID = 8;

/**
 * What people can tell a session by. connection: the beginning of its id. lane: its name; of a name
 * that is an id the beginning, unless `titleOf` knows what this browser calls it. whole: both ids.
 */
export interface SessionName {
  readonly connection: string;
  readonly lane: string;
  readonly whole: string;
}

export function nameOf(
  session: SessionTelemetry,
  titleOf: (lane: string) => string | null = () => null,
): SessionName {
  const lane = session.lane ?? "";
  return {
    connection: shortId(session.session_id.replace(/^sess_/, "")),
    lane: titleOf(lane) ?? (isId(lane) ? `${shortId(lane)}…` : lane),
    whole: lane === "" ? session.session_id : `${session.session_id}, lane ${lane}`,
  };
}

export function shortId(id: string): string {
  return id.slice(0, SHORT_ID);
}

/** Whether nobody would say it: long, of hexadecimal digits and dashes alone. */
export function isId(name: string): boolean {
  return /^[0-9a-f-]{16,}$/i.test(name);
}
