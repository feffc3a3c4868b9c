/** What the whole app shares, made once by `main.tsx`. */
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Answering } from "../chat/answering";
import type { Store } from "../chat/store";
import type { Recorder } from "../telemetry/recorder";
import type { Connection } from "../wire/connection";

export interface Services {
  readonly connection: Connection;
  readonly store: Store;
  readonly answering: Answering;
  readonly recorder: Recorder;
}

export const ServicesContext = createContext<Services | null>(null);

export function useServices(): Services {
  const services = useContext(ServicesContext);
  if (services === null) throw new Error("no services around this component");
  return services;
}
