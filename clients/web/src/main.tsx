import { effect } from "@preact/signals";
import { render } from "preact";
import { Answering } from "./chat/answering";
import { openDatabase } from "./chat/database";
import { Store } from "./chat/store";
import { openTabs } from "./chat/tabs";
import { App } from "./shell/app";
import { followTheme } from "./shell/browser_state";
import {
  base,
  conversationInAddress,
  page,
  putConversationInAddress,
} from "./shell/router";
import { ServicesContext } from "./shell/services";
import { Recorder } from "./telemetry/recorder";
import { Connection } from "./wire/connection";
import { endpointOf, keyStorage } from "./wire/endpoint";
import { Lanes } from "./wire/lanes";
import "./style/base.css";
import "./style/chat.css";
import "./style/markdown.css";

followTheme();
await start();

async function start(): Promise<void> {
  const connection = new Connection(
    endpointOf(new URL(base, location.href).href),
    keyStorage.read(),
  );
  const tabs = openTabs();
  const database = await openDatabase();
  const store: Store = new Store(database, tabs, () => answering.messageIds);
  const answering = new Answering(store, connection, new Lanes(connection));
  const recorder = new Recorder(connection);
  tabs.listen((note) => {
    if (note.kind === "stop") answering.stopHere(note.messageId);
  });
  if (!database.isLasting) {
    store.storageError.value = "This browser stores nothing here; a reload forgets the chat.";
  }
  await store.start();
  await openFromAddress(store);
  for (const id of answering.conversationsBefore) {
    if (store.conversation(id) !== null) await store.load(id);
  }

  addEventListener("hashchange", () => void openFromAddress(store));
  addEventListener("online", () => connection.hurry());
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") connection.hurry();
  });
  effect(() => {
    const id = store.activeId.value;
    if (page.value === "chat") putConversationInAddress(id);
  });
  connection.start();

  const root = document.querySelector("#app");
  if (root === null) throw new Error("the page has no #app");
  render(
    <ServicesContext.Provider value={{ connection, store, answering, recorder }}>
      <App />
    </ServicesContext.Provider>,
    root,
  );
}

async function openFromAddress(store: Store): Promise<void> {
  const id = conversationInAddress();
  if (id !== null && id !== store.activeId.peek() && store.conversation(id) !== null) {
    await store.open(id);
  }
}
