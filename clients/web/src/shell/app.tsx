/** The frame around both pages. */
import { Suspense, lazy } from "preact/compat";
import { useEffect } from "preact/hooks";
import { ChatPage } from "../chat/page";
import { THEMES, type Theme, theme } from "./browser_state";
import { IconButton, type IconName } from "./icons";
import { type Page, go, page, pathOf } from "./router";
import { ConnectionStatus, KeyDialog } from "./status";

const TelemetryPage = lazy(() => import("../telemetry/page"));

export function App() {
  const current = page.value;
  useEffect(() => {
    document.title = current === "chat" ? "Paceline" : "Telemetry · Paceline";
  }, [current]);
  return (
    <div class="app">
      <a class="skip" href="#main" onClick={skipToMain}>
        Skip to the content
      </a>
      <header class="bar">
        <div class="brand" aria-hidden="true">
          <svg viewBox="0 0 24 24">
            <path d="M4 7h16M4 12h11M4 17h6" />
          </svg>
          <span>Paceline</span>
        </div>
        <nav class="pages" aria-label="Pages">
          <PageLink target="chat">Chat</PageLink>
          <PageLink target="telemetry">Telemetry</PageLink>
        </nav>
        <div class="bar-end">
          <ConnectionStatus />
          <ThemeButton />
        </div>
      </header>
      {current === "chat" ? (
        <ChatPage />
      ) : (
        <Suspense fallback={<main id="main" class="loading" aria-busy="true" />}>
          <TelemetryPage />
        </Suspense>
      )}
      <KeyDialog />
    </div>
  );
}

function PageLink({ target, children }: { target: Page; children: string }) {
  return (
    <a
      href={pathOf(target)}
      aria-current={page.value === target ? "page" : undefined}
      onClick={(event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
        event.preventDefault();
        go(target);
      }}
    >
      {children}
    </a>
  );
}

const THEME_ICONS: Record<Theme, IconName> = { auto: "half", light: "sun", dark: "moon" };
const THEME_NAMES: Record<Theme, string> = { auto: "as the system", light: "light", dark: "dark" };

function ThemeButton() {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "auto";
  return (
    <IconButton
      icon={THEME_ICONS[theme.value]}
      label={`Theme: ${THEME_NAMES[theme.value]}. Change to ${THEME_NAMES[next]}`}
      onClick={() => (theme.value = next)}
    />
  );
}

function skipToMain(event: MouseEvent): void {
  event.preventDefault(); // the fragment names the conversation
  document.querySelector<HTMLElement>("#main")?.focus();
}
