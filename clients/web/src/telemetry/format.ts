import { milliseconds } from "../chat/measures";
import type { SessionTelemetry } from "../protocol.generated";

export const whole = (value: number): string => Math.round(value).toLocaleString("en");
export const one = (value: number): string => (value < 100 ? value.toFixed(1) : whole(value));
export const two = (value: number): string => value.toFixed(2);
export const ms = (value: number): string => milliseconds(value) ?? "";
export const share = (value: number): string => `${Math.round(value * 100)} %`;

/** A dash where the server has no number. */
export function or(value: number | null, format: (value: number) => string): string {
  return value === null ? "–" : format(value);
}

/** The end of a session's id is enough to tell it apart; the lane says more where it has a name. */
export function nameOf(session: SessionTelemetry): { connection: string; lane: string } {
  const id = session.session_id.replace(/^sess_/, "");
  return { connection: id.slice(0, 8), lane: session.lane ?? "" };
}
