/** The whole of it: Chromium, the real server, and SmolLM2 on a CPU. */
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { TelemetrySample } from "../../src/protocol.generated";
import { Server, answered, lastAnswer, launch, open, say, seen } from "./driver";

const NUM_SESSIONS = 20;
const OPTIONS = ["--kv-memory", "512MiB"];
const TIMEOUT_MS = 600_000;
/** In tokens. */
const LONG_ANSWER = 800;

let browser: Browser;
let server: Server;

beforeAll(async () => {
  [browser, server] = await Promise.all([launch(), Server.real(...OPTIONS)]);
});

afterAll(async () => {
  await browser.close();
  await server.stop();
});

/** Asks for telemetry on a socket of its own until a sample is as wanted. */
function sampleWith(page: Page, condition: string): Promise<TelemetrySample> {
  return page.evaluate(
    ([url, source]) =>
      new Promise<TelemetrySample>((resolve) => {
        const isWanted = new Function("sample", `return ${source}`);
        const socket = new WebSocket(url as string);
        socket.onopen = () =>
          socket.send(
            JSON.stringify({ type: "telemetry.subscribe", scope: "server", interval_ms: 100 }),
          );
        socket.onmessage = (message: MessageEvent<string>) => {
          const sample = JSON.parse(message.data) as TelemetrySample;
          if (!isWanted(sample)) return;
          socket.close();
          resolve(sample);
        };
      }),
    [`${server.url.replace("http", "ws")}/v1/responses`, condition] as const,
  );
}

/** From here on the page's requests ask for answers that cannot end by themselves. */
async function askForLongAnswers(page: Page): Promise<void> {
  await page.evaluate((minTokens) => {
    const send = WebSocket.prototype.send;
    WebSocket.prototype.send = function (data) {
      const event = JSON.parse(data as string) as { type: string; paceline?: object };
      if (event.type === "response.create") {
        event.paceline = { ...event.paceline, min_tokens: minTokens };
      }
      send.call(this, JSON.stringify(event));
    };
  }, LONG_ANSWER);
}

/** Twenty connections that each ask for something long: none ends while it is looked at. */
async function openSessions(page: Page): Promise<void> {
  await page.evaluate(
    ([url, count, longAnswer]) => {
      const sockets = Array.from({ length: count as number }, (_, index) => {
        const socket = new WebSocket(url as string);
        socket.onopen = () =>
          socket.send(
            JSON.stringify({
              type: "response.create",
              stream_id: `person ${index + 1}`,
              input: `Count from ${index} upwards, in words.`,
              max_output_tokens: longAnswer,
              paceline: { min_tokens: longAnswer },
            }),
          );
        return socket;
      });
      (window as unknown as { sockets: WebSocket[] }).sockets = sockets;
    },
    [`${server.url.replace("http", "ws")}/v1/responses`, NUM_SESSIONS, LONG_ANSWER] as const,
  );
}

test("an answer streams, is stopped, made again, edited and survives a reload", async () => {
  const context = await browser.newContext();
  const { page, errors } = await open(context, server.url);
  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  await page.getByLabel("Longest answer").fill("40");
  await page.getByLabel("Temperature").fill("0");
  await page.getByRole("button", { name: "Save" }).click();

  await say(page, "What is the capital of France?");
  await answered(page);
  expect(await lastAnswer(page).innerText()).toContain("Paris");
  expect(await lastAnswer(page).locator(".measures").innerText()).toContain("tok/s");

  await page.getByRole("button", { name: "Answer again" }).click();
  await seen(page, "2 of 2");
  await answered(page);

  await page.getByRole("button", { name: "Edit and send again" }).click();
  const editor = page.getByRole("form", { name: "Edit the message" });
  await editor.getByLabel("Message").fill("What is the capital of Italy?");
  await editor.getByRole("button", { name: "Send" }).click();
  await page.getByRole("article", { name: "You" }).getByText("Italy").waitFor();
  await answered(page);
  const text = await lastAnswer(page).locator(".markdown").innerText();
  expect(text.length).toBeGreaterThan(5);

  await page.reload();
  await lastAnswer(page).getByText(text).waitFor();

  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  await page.getByLabel("Longest answer").fill(String(LONG_ANSWER));
  await page.getByRole("button", { name: "Save" }).click();
  await askForLongAnswers(page);
  await say(page, "Write a very long story about a bicycle race.");
  await page.waitForFunction(
    () => (document.querySelector("[aria-busy=true] .markdown")?.textContent.length ?? 0) > 40,
  );
  await page.keyboard.press("Escape");
  await seen(page, "Stopped.");
  const idle = await sampleWith(page, "sample.server.num_running === 0");
  expect(idle.server?.num_waiting).toBe(0);
  await page.keyboard.press("Alt+KeyT");
  await page.locator(".tokens [data-source]").first().waitFor();
  expect(errors).toEqual([]);
  await context.close();
}, TIMEOUT_MS);

test("the server restarts in mid-conversation, and the conversation goes on", async () => {
  const context = await browser.newContext();
  const { page } = await open(context, server.url);
  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  await page.getByLabel("Longest answer").fill("24");
  await page.getByLabel("Temperature").fill("0");
  await page.getByRole("button", { name: "Save" }).click();
  await say(page, "What is the capital of France?");
  await answered(page);
  const { port } = server;
  await server.stop();
  await page.getByRole("status").getByText("Reconnecting").waitFor();
  await say(page, "And which river runs through it?");
  await seen(page, "Waiting for the server");
  server = await Server.real(...OPTIONS, "--port", port);
  await answered(page);
  expect(await page.getByRole("article", { name: "Answer" }).count()).toBe(2);
  expect((await lastAnswer(page).locator(".markdown").innerText()).length).toBeGreaterThan(5);
  await context.close();
}, TIMEOUT_MS);

test("telemetry shows twenty live sessions, and one of them in detail", async () => {
  const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } });
  const people = await context.newPage();
  await people.goto(server.url);
  const { page, errors } = await open(context, `${server.url}/telemetry`);
  await openSessions(people);
  await page.waitForFunction((count) => {
    const table = document.querySelector("table[aria-rowcount]");
    return Number(table?.getAttribute("aria-rowcount")) > (count as number);
  }, NUM_SESSIONS);
  await page.locator(".tile", { hasText: "Running" }).getByText("20").waitFor();
  await page.locator('tr[data-active="true"] .session-link').first().click();
  const detail = page.getByRole("complementary", { name: "Session detail" });
  await detail.getByText("answering").waitFor();
  expect(await detail.getByRole("heading", { level: 2 }).innerText()).toContain("person");
  expect(errors).toEqual([]);
  await context.close();
  const other = await open(await browser.newContext(), server.url);
  await sampleWith(other.page, "sample.server.num_running === 0"); // all twenty were freed
}, TIMEOUT_MS);
