/** How the connection is, and the form for a key. */
import { useEffect, useState } from "preact/hooks";
import type { ConnectionState } from "../wire/connection";
import { keyStorage } from "../wire/endpoint";
import { Dialog } from "./dialog";
import { useServices } from "./services";

const WORDS: Record<ConnectionState, string> = {
  connecting: "Connecting",
  open: "Connected",
  lost: "Reconnecting",
  needs_key: "Key needed",
  closed: "Closed",
};

/** While a server goes away and comes back. */
const LEAVING_WORDS: Partial<Record<ConnectionState, string>> = {
  open: "Server shutting down",
  lost: "Server was shut down. Reconnecting",
};

export function ConnectionStatus() {
  const { connection } = useServices();
  const state = connection.state.value;
  const isLeaving = connection.isServerLeaving.value;
  const model = connection.model.value;
  return (
    <div class="status" role="status" data-state={state} data-leaving={isLeaving}>
      <span class="status-dot" aria-hidden="true" />
      <span class="status-word">{(isLeaving && LEAVING_WORDS[state]) || WORDS[state]}</span>
      {state === "open" && model !== null && (
        <span class="status-model" title={`The model that this server serves: ${model.id}`}>
          {model.id.split("/").at(-1)}
        </span>
      )}
    </div>
  );
}

export function KeyDialog() {
  const { connection } = useServices();
  const [isHidden, setHidden] = useState(false);
  const [hasTried, setTried] = useState(false);
  const isNeeded = connection.state.value === "needs_key";
  useEffect(() => {
    if (isNeeded) setHidden(false);
  }, [isNeeded]);
  if (!isNeeded || isHidden) return null;

  function submit(event: SubmitEvent): void {
    event.preventDefault();
    const fields = new FormData(event.currentTarget as HTMLFormElement);
    const key = String(fields.get("key") ?? "").trim();
    if (key === "") return;
    keyStorage.write(key, fields.get("remember") !== null);
    setTried(true);
    connection.useKey(key);
  }

  return (
    <Dialog title="This server asks for a key" onClose={() => setHidden(true)}>
      <form class="form" onSubmit={submit}>
        {hasTried && <p class="problem">The server did not accept that key.</p>}
        <label class="field">
          <span>API key</span>
          <input name="key" type="password" autocomplete="off" required />
        </label>
        <label class="choice">
          <input name="remember" type="checkbox" />
          <span>Remember it in this browser</span>
        </label>
        <div class="form-actions">
          <button type="submit" class="primary">
            Connect
          </button>
        </div>
      </form>
    </Dialog>
  );
}
