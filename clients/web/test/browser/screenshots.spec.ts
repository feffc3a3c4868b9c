/** Pictures for the README, from the real server; only when PACELINE_SCREENSHOTS names a folder. */
import type { Browser } from "playwright-core";
import { afterAll, beforeAll, test } from "vitest";
import { Server, answered, launch, say } from "./driver";

const FOLDER = process.env["PACELINE_SCREENSHOTS"];
const SCHEMES = ["light", "dark"] as const;
const VIEWPORT = { width: 1180, height: 760 };
const QUESTIONS = [
  "What is the capital of France?",
  "Write three sentences about the sea.",
];

let browser: Browser;
let server: Server;

beforeAll(async () => {
  if (FOLDER === undefined) return;
  [browser, server] = await Promise.all([launch(), Server.real("--kv-memory", "512MiB")]);
});

afterAll(async () => {
  await browser?.close();
  await server?.stop();
});

test.skipIf(FOLDER === undefined)("the chat", async () => {
  for (const colorScheme of SCHEMES) {
    const context = await browser.newContext({ colorScheme, viewport: VIEWPORT });
    const page = await context.newPage();
    await page.goto(server.url);
    await page.getByRole("button", { name: "System prompt and sampling" }).click();
    await page.getByLabel("Temperature").fill("0");
    await page.getByLabel("Longest answer").fill("160");
    await page.getByLabel("Speculation").selectOption("on");
    await page.getByLabel("Drafted tokens").fill("3");
    await page.getByRole("button", { name: "Save" }).click();
    for (const question of QUESTIONS) {
      await say(page, question);
      await answered(page);
    }
    await page.keyboard.press("Alt+KeyT");
    await page.locator(".tokens").first().waitFor();
    await page.screenshot({ path: `${FOLDER}/chat-${colorScheme}.png` });
    await page.keyboard.press("Alt+KeyT");
    await page.waitForFunction(() => document.querySelector(".tokens") === null);
    await page.screenshot({ path: `${FOLDER}/markdown-${colorScheme}.png` });
    await context.close();
  }
});

test.skipIf(FOLDER === undefined)("telemetry", async () => {
  const people = await (await browser.newContext()).newPage();
  await people.goto(server.url);
  await people.evaluate((url) => {
    for (let person = 1; person <= 20; person += 1) {
      const socket = new WebSocket(url);
      const ask = () =>
        socket.send(
          JSON.stringify({
            type: "response.create",
            stream_id: `person ${person}`,
            input: `Tell a story about ${person} riders, and repeat every sentence.`,
            max_output_tokens: 60 + person * 12,
          }),
        );
      socket.onopen = ask;
      socket.onmessage = (message: MessageEvent<string>) => {
        // Between two questions a person thinks.
        if (/"type":"response\.(?:completed|incomplete)"/.test(message.data)) {
          setTimeout(ask, 400 * person);
        }
      };
    }
  }, `${server.url.replace("http", "ws")}/v1/responses`);
  const pages = await Promise.all(
    SCHEMES.map(async (colorScheme) => {
      const context = await browser.newContext({ colorScheme, viewport: VIEWPORT });
      const page = await context.newPage();
      await page.goto(`${server.url}/telemetry`);
      return { page, colorScheme };
    }),
  );
  await people.waitForTimeout(58_000);
  for (const { page, colorScheme } of pages) {
    await page.bringToFront();
    await page.screenshot({ path: `${FOLDER}/telemetry-${colorScheme}.png` });
  }
});
