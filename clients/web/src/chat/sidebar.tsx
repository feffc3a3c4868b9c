/** The conversations of this browser, newest first. On a phone a drawer, which `onClose` closes. */
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Dialog } from "../shell/dialog";
import { Icon, IconButton } from "../shell/icons";
import { useServices } from "../shell/services";
import { focusComposer } from "./composer";
import type { ConversationRecord } from "./records";

export function Sidebar({ onClose }: { onClose: (() => void) | null }) {
  const { store, answering } = useServices();
  const [renaming, setRenaming] = useState<string | null>(null);
  const [removing, setRemoving] = useState<ConversationRecord | null>(null);
  const isDrawer = onClose !== null;
  const first = useRef<HTMLButtonElement>(null);
  // Before the drawer is painted: what is typed from then on belongs to it.
  useLayoutEffect(() => {
    if (!isDrawer) return;
    const before = document.activeElement;
    first.current?.focus();
    return () => {
      if (before instanceof HTMLElement && document.activeElement === document.body) before.focus();
    };
  }, [isDrawer]);
  useLayoutEffect(() => {
    if (onClose === null || removing !== null) return;
    // On the document: a tap beside a control takes the focus out of the drawer.
    const closeOnEscape = (event: KeyboardEvent): void => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // an answer that is under way goes on
      onClose();
    };
    document.addEventListener("keydown", closeOnEscape);
    return () => document.removeEventListener("keydown", closeOnEscape);
  }, [onClose, removing]);

  function create(): void {
    if (store.active === null || store.active.leafId !== null) store.create();
    onClose?.();
    focusComposer();
  }

  function remove(conversation: ConversationRecord): void {
    for (const id of answering.messageIds) {
      if (store.find(id)?.peek().conversationId === conversation.id) answering.stopHere(id);
    }
    setRemoving(null);
    void store.remove(conversation.id);
  }

  return (
    <aside class="sidebar" aria-label="Conversations">
      <div class="sidebar-head">
        <button
          type="button"
          class="new-conversation"
          title="Alt+N"
          ref={first}
          onClick={create}
        >
          <Icon name="plus" />
          <span>New conversation</span>
        </button>
        {onClose !== null && (
          <IconButton icon="close" label="Close the list" onClick={onClose} />
        )}
      </div>
      <ul class="conversations">
        {store.conversations.value.map((conversation) => (
          <li key={conversation.id} data-active={conversation.id === store.activeId.value}>
            {renaming === conversation.id ? (
              <RenameField
                title={conversation.title}
                onEnd={(title) => {
                  if (title !== null) store.rename(conversation.id, title);
                  setRenaming(null);
                }}
              />
            ) : (
              <>
                <button
                  type="button"
                  class="conversation-link"
                  title={conversation.title}
                  aria-current={conversation.id === store.activeId.value ? "true" : undefined}
                  onClick={() => {
                    void store.open(conversation.id);
                    onClose?.();
                  }}
                  onDblClick={() => setRenaming(conversation.id)}
                >
                  {conversation.title}
                </button>
                <span class="conversation-actions">
                  <IconButton
                    icon="edit"
                    label={`Rename ${conversation.title}`}
                    onClick={() => setRenaming(conversation.id)}
                  />
                  <IconButton
                    icon="trash"
                    label={`Delete ${conversation.title}`}
                    onClick={() => setRemoving(conversation)}
                  />
                </span>
              </>
            )}
          </li>
        ))}
      </ul>
      <p class="sidebar-note">Conversations are kept in this browser only.</p>
      {removing !== null && (
        <Dialog title="Delete this conversation?" onClose={() => setRemoving(null)}>
          <p>“{removing.title}” is removed from this browser for good.</p>
          <div class="form-actions">
            <button type="button" onClick={() => setRemoving(null)}>
              Keep it
            </button>
            <button type="button" class="danger" onClick={() => remove(removing)}>
              Delete
            </button>
          </div>
        </Dialog>
      )}
    </aside>
  );
}

function RenameField(props: { title: string; onEnd: (title: string | null) => void }) {
  const [title, setTitle] = useState(props.title);
  return (
    <input
      class="rename"
      aria-label="Title"
      value={title}
      ref={(input) => input?.focus()}
      onInput={(event) => setTitle(event.currentTarget.value)}
      onBlur={() => props.onEnd(title.trim() === "" ? null : title)}
      onKeyDown={(event) => {
        if (event.key === "Enter") props.onEnd(title.trim() === "" ? null : title);
        if (event.key === "Escape") {
          event.stopPropagation();
          props.onEnd(null);
        }
      }}
    />
  );
}
