/** Chromium and servers, for the tests of this folder. */
import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import AxeBuilder from "./axe";
import { type Browser, type BrowserContext, type Page, chromium } from "playwright-core";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const PYTHON = process.env["PACELINE_PYTHON"] ?? `${ROOT}/.venv/bin/python`;
const CHROMIUM = process.env["PACELINE_CHROMIUM"] ?? "/usr/bin/chromium";

/** A machine that is busy with other things is no reason to fail. */
const PATIENCE_MS = 100_000;

export async function launch(): Promise<Browser> {
  const browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: [
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  const newContext = browser.newContext.bind(browser);
  browser.newContext = async (options) => {
    const context = await newContext(options);
    context.setDefaultTimeout(PATIENCE_MS);
    return context;
  };
  return browser;
}

/** A server process; its lines after the first are kept. */
export class Server {
  readonly lines: string[] = [];
  private readonly waiting = new Set<() => void>();

  private constructor(
    private readonly process: ChildProcess,
    readonly url: string,
  ) {}

  /** The scripted server of `tests/web/scripted_server.py`. */
  static scripted(...options: string[]): Promise<Server> {
    return Server.start(["-m", "tests.web.scripted_server", ...options]);
  }

  /** `paceline serve` with the default model. */
  static real(...options: string[]): Promise<Server> {
    const command = ["-c", "from paceline.cli import main; main()", "serve", "--host", "127.0.0.1"];
    return Server.start([...command, "--log-level", "warning", "--port", "0", ...options]);
  }

  private static start(command: string[]): Promise<Server> {
    const roots = ["backend", "protocol", "clients/python", ""].map((each) => `${ROOT}/${each}`);
    const child = spawn(PYTHON, command, {
      cwd: ROOT,
      env: { ...process.env, PYTHONPATH: roots.join(":"), OMP_WAIT_POLICY: "PASSIVE" },
      stdio: ["ignore", "pipe", "inherit"],
    });
    return new Promise((resolve, reject) => {
      let server: Server | null = null;
      child.once("exit", (code) => reject(new Error(`the server ended with ${code}`)));
      createInterface({ input: child.stdout! }).on("line", (line) => {
        const url = /https?:\/\/[^\s/]+/.exec(line)?.[0];
        if (server !== null) server.take(line);
        else if (url !== undefined) resolve((server = new Server(child, url)));
      });
    });
  }

  get port(): string {
    return new URL(this.url).port;
  }

  /** Until a line after the first `from` lines matches. */
  async line(pattern: RegExp, from = 0): Promise<string> {
    for (;;) {
      const found = this.lines.slice(from).find((line) => pattern.test(line));
      if (found !== undefined) return found;
      await new Promise<void>((resolve) => this.waiting.add(resolve));
    }
  }

  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill(signal);
    await ended;
  }

  private take(line: string): void {
    this.lines.push(line);
    for (const wake of this.waiting) wake();
    this.waiting.clear();
  }
}

/** What a page said in its console that no page should say. */
export interface Watched {
  readonly page: Page;
  readonly errors: string[];
}

export async function open(context: BrowserContext, url: string): Promise<Watched> {
  const page = await context.newPage();
  const errors: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(url);
  return { page, errors };
}

/** Violations that axe-core finds, in a form that a failed test shows well. */
export async function violations(page: Page): Promise<string[]> {
  return new AxeBuilder(page).analyze();
}

/** Sends it as soon as the answer before has ended; then it is on the page, and so is its answer. */
export async function say(page: Page, text: string): Promise<void> {
  const composer = page.getByRole("form", { name: "Write a message" });
  const field = composer.getByLabel("Message", { exact: true });
  await composer.getByRole("button", { name: "Send" }).waitFor();
  await field.fill(text);
  await field.press("Enter");
  await page.waitForFunction(
    () => document.querySelector<HTMLTextAreaElement>("#composer")?.value === "",
  );
}

/** The newest answer. */
export function lastAnswer(page: Page) {
  return page.getByRole("article", { name: "Answer" }).last();
}

/** Until the newest answer has ended. */
export async function answered(page: Page): Promise<void> {
  await page.waitForFunction(() => {
    const answers = document.querySelectorAll("article.answer");
    return answers.length > 0 && answers[answers.length - 1]?.ariaBusy !== "true";
  });
}

/** Until the text is on the page; not only told to screen readers. */
export async function seen(page: Page, text: string): Promise<void> {
  await page.locator(".thread-content, dialog, .telemetry").getByText(text).first().waitFor();
}

/** Until the browser has stored a message with the text; a tab that is closed leaves no more. */
export async function stored(page: Page, text: string): Promise<void> {
  const isStored = (wanted: string): Promise<boolean> =>
    new Promise((resolve, reject) => {
      const opening = indexedDB.open("paceline");
      opening.onerror = () => reject(opening.error);
      opening.onsuccess = () => {
        const database = opening.result;
        const reading = database.transaction("messages").objectStore("messages").getAll();
        reading.onerror = () => reject(reading.error);
        reading.onsuccess = () => {
          database.close();
          resolve(reading.result.some((message: { text: string }) => message.text.includes(wanted)));
        };
      };
    });
  while (!(await page.evaluate(isStored, text)));
}
