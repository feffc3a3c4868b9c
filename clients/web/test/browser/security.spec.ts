/** What a model, a user or another client writes is text, and nothing else. */
import { readFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Server, answered, launch, say } from "./driver";
import { mockTelemetry } from "./mock_telemetry";

const BUILT = fileURLToPath(
  new URL("../../../../backend/paceline/server/web", import.meta.url),
);
const ATTACK = "<img src=x onerror='window.attacked=1'><script>window.attacked=2</script>";
const MOST_BYTES = 250_000;

let browser: Browser;
let server: Server;

beforeAll(async () => {
  [browser, server] = await Promise.all([launch(), Server.scripted()]);
});

afterAll(async () => {
  await browser.close();
  await server.stop();
});

interface Visited {
  readonly page: Page;
  readonly errors: string[];
  readonly foreign: string[];
}

async function visit(path: string, prepare?: (page: Page) => Promise<unknown>): Promise<Visited> {
  const page = await (await browser.newContext()).newPage();
  const visited: Visited = { page, errors: [], foreign: [] };
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") {
      visited.errors.push(message.text());
    }
  });
  page.on("pageerror", (error) => visited.errors.push(String(error)));
  page.on("request", (request) => {
    if (new URL(request.url()).host !== new URL(server.url).host) {
      visited.foreign.push(request.url());
    }
  });
  await prepare?.(page);
  await page.goto(server.url + path);
  return visited;
}

async function expectHarmless({ page, errors, foreign }: Visited): Promise<void> {
  expect(await page.evaluate(() => (window as unknown as { attacked?: number }).attacked)).toBe(
    undefined,
  );
  expect(await page.locator("#app script, #app iframe, #app img, #app style").count()).toBe(0);
  expect(errors).toEqual([]);
  expect(foreign).toEqual([]);
}

test("nothing in a model's answer runs, loads or leads to a script", async () => {
  const visited = await visit("/");
  const { page } = visited;
  await say(page, "attack");
  await answered(page);
  expect(await page.locator(".answer .markdown").innerText()).toContain("<script>");
  const addresses = await page
    .locator(".answer a")
    .evaluateAll((all) => all.map((each) => (each as HTMLAnchorElement).protocol));
  expect(addresses.filter((each) => !["http:", "https:", "mailto:"].includes(each))).toEqual([]);
  await page.keyboard.press("Alt+KeyT");
  await page.locator(".tokens").waitFor();
  await expectHarmless(visited);
});

test("nothing in a message or in a title runs", async () => {
  const visited = await visit("/");
  const { page } = visited;
  await say(page, ATTACK);
  await answered(page);
  await page.locator(".conversation-link").dblclick();
  await page.getByLabel("Title").fill(`${ATTACK} again`);
  await page.keyboard.press("Enter");
  await page.reload();
  await page.locator(".conversation-link").getByText(`${ATTACK} again`).waitFor();
  await expectHarmless(visited);
});

test("nothing in a session's name or reason runs", async () => {
  const visited = await visit("/telemetry", (page) =>
    mockTelemetry(page, { numSessions: 12, lane: () => ATTACK, reason: () => ATTACK }),
  );
  const { page } = visited;
  await page.locator(".session-link").first().click();
  await page.getByRole("complementary", { name: "Session detail" }).waitFor();
  expect(await page.locator(".detail").innerText()).toContain("onerror");
  await expectHarmless(visited);
});

test("a page of another origin gets no connection", async () => {
  const other = await Server.scripted();
  const page = await (await browser.newContext()).newPage();
  await page.goto(`${other.url}/healthz`);
  const outcome = await page.evaluate(
    (url) =>
      new Promise((resolve) => {
        const socket = new WebSocket(url);
        socket.onopen = () => resolve("open");
        socket.onerror = () => resolve("refused");
      }),
    `${server.url.replace("http", "ws")}/v1/responses`,
  );
  expect(outcome).toBe("refused");
  await other.stop();
});

test("script and style are small together, and come from this server alone", () => {
  const page = readFileSync(`${BUILT}/index.html`, "utf8");
  expect(page.match(/(?:src|href)="(?!\.\/)[^"]*"/g)).toBeNull();
  const files = readdirSync(`${BUILT}/assets`).filter((name) => /\.(?:js|css)$/.test(name));
  const total = files.reduce(
    (sum, name) => sum + gzipSync(readFileSync(`${BUILT}/assets/${name}`)).length,
    0,
  );
  expect(files.length).toBeGreaterThan(2);
  expect(total).toBeLessThan(MOST_BYTES);
});
