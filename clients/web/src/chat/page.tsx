/** The chat: conversations at the side, one of them in the middle, the composer below. */
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { originsView } from "../shell/browser_state";
import { Icon, IconButton } from "../shell/icons";
import { useServices } from "../shell/services";
import { Composer } from "./composer";
import { useNarrow } from "./hooks";
import { SettingsDialog } from "./settings_dialog";
import { ShortcutsDialog, useShortcuts } from "./shortcuts";
import { Sidebar } from "./sidebar";
import { Thread } from "./thread";

export type OpenDialog = "settings" | "shortcuts" | null;
export const openDialog = signal<OpenDialog>(null);
/** A user's message that is being edited. */
export const editing = signal<string | null>(null);

function closeDialog(): void {
  openDialog.value = null;
}

export function ChatPage() {
  const { store } = useServices();
  const isNarrow = useNarrow();
  const [isSidebarOpen, setSidebarOpen] = useState(false);
  const conversation = store.active;
  const showsSidebar = !isNarrow || isSidebarOpen;
  useShortcuts();
  useEffect(() => {
    setSidebarOpen(false);
    editing.value = null;
  }, [conversation?.id]);

  const areOriginsShown = originsView.value === "on";
  return (
    <div class="chat">
      {isNarrow && isSidebarOpen && (
        <div class="drawer-ground" aria-hidden="true" onClick={() => setSidebarOpen(false)} />
      )}
      {showsSidebar && <Sidebar onClose={isNarrow ? () => setSidebarOpen(false) : null} />}
      <main id="main" tabIndex={-1} class="conversation">
        <div class="conversation-head">
          {isNarrow && (
            <IconButton
              icon="menu"
              label="Conversations"
              expanded={isSidebarOpen}
              onClick={() => setSidebarOpen(!isSidebarOpen)}
            />
          )}
          <h1 class="conversation-title" title={conversation?.title}>
            {conversation?.title ?? "New conversation"}
          </h1>
          <button
            type="button"
            class="chip-button"
            aria-pressed={areOriginsShown}
            title="Colour each token by where it came from (Alt+T)"
            onClick={() => (originsView.value = areOriginsShown ? "off" : "on")}
          >
            <Icon name="tokens" />
            <span>Token origins</span>
          </button>
          <IconButton
            icon="settings"
            label="System prompt and sampling"
            onClick={() => (openDialog.value = "settings")}
          />
          <IconButton
            icon="keyboard"
            label="Keyboard shortcuts"
            class="wide-only"
            onClick={() => (openDialog.value = "shortcuts")}
          />
        </div>
        {store.storageError.value !== null && (
          <p class="banner" role="alert">
            {store.storageError.value}
          </p>
        )}
        <Thread conversation={conversation} />
        <Composer conversation={conversation} />
      </main>
      {openDialog.value === "settings" && <SettingsDialog onClose={closeDialog} />}
      {openDialog.value === "shortcuts" && <ShortcutsDialog onClose={closeDialog} />}
    </div>
  );
}
