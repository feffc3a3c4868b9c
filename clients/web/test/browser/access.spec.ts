/** Keyboard, phone, screen reader, and keys to the server. */
import type { Browser, BrowserContextOptions, Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { answered, lastAnswer, launch, open, say, seen, Server, violations } from "./driver";
import { mockTelemetry } from "./mock_telemetry";

let browser: Browser;
let server: Server;

beforeAll(async () => {
  [browser, server] = await Promise.all([launch(), Server.scripted()]);
});

afterAll(async () => {
  await browser.close();
  await server.stop();
});

async function inPage(
  options: BrowserContextOptions,
  path: string,
  visit: (page: Page) => Promise<void>,
): Promise<void> {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const errors: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  if (path === "/telemetry") await mockTelemetry(page, { numSessions: 20 });
  await page.goto(server.url + path);
  await visit(page);
  await context.close();
  expect(errors).toEqual([]);
}

for (const colorScheme of ["light", "dark"] as const) {
  for (const [name, viewport] of [
    ["a desk", { width: 1280, height: 900 }],
    ["a phone", { width: 375, height: 740 }],
  ] as const) {
    test(`axe finds nothing in the chat, ${colorScheme}, on ${name}`, () =>
      inPage({ colorScheme, viewport }, "/", async (page) => {
        await page.getByRole("heading", { name: "What shall we talk about?" }).waitFor();
        expect(await violations(page)).toEqual([]);
        await say(page, "show me code");
        await answered(page);
        expect(await violations(page)).toEqual([]);
        await page.keyboard.press("Alt+KeyT");
        expect(await violations(page)).toEqual([]);
        await page.keyboard.press("Alt+KeyE");
        expect(await violations(page)).toEqual([]);
        await page.keyboard.press("Escape");
        await page.keyboard.press("Alt+KeyS");
        expect(await violations(page)).toEqual([]);
        await page.keyboard.press("Escape");
        await page.keyboard.press("Alt+KeyK");
        expect(await violations(page)).toEqual([]);
        await page.keyboard.press("Escape");
        if (name === "a phone") {
          await page.getByRole("button", { name: "Conversations" }).click();
          expect(await violations(page)).toEqual([]);
        }
      }));

    test(`axe finds nothing in telemetry, ${colorScheme}, on ${name}`, () =>
      inPage({ colorScheme, viewport }, "/telemetry", async (page) => {
        await page.locator(".session-link").first().waitFor();
        expect(await violations(page)).toEqual([]);
        await page.locator(".session-link").first().click();
        await page.getByRole("complementary", { name: "Session detail" }).waitFor();
        expect(await violations(page)).toEqual([]);
      }));
  }
}

test("everything is done by keyboard alone", () =>
  inPage({}, "/", async (page) => {
    await page.getByRole("heading", { name: "What shall we talk about?" }).waitFor();
    await page.keyboard.press("Alt+KeyI");
    await page.keyboard.type("hello");
    await page.keyboard.press("Enter");
    await answered(page);
    await page.keyboard.type("slow");
    await page.keyboard.press("Enter");
    await seen(page, "word 3 ");
    await page.keyboard.press("Escape");
    await seen(page, "Stopped.");
    await page.keyboard.press("ArrowUp");
    await page.waitForFunction(() => document.activeElement?.closest(".editor"));
    await page.keyboard.press("Control+A");
    await page.keyboard.type("edited");
    await page.keyboard.press("Enter");
    await seen(page, "You said: edited");
    await answered(page);
    await page.keyboard.press("Alt+KeyR");
    await lastAnswer(page).getByText("2 of 2").waitFor();
    await answered(page);
    await page.keyboard.press("Alt+KeyT");
    await page.locator(".tokens").first().waitFor();
    await page.keyboard.press("Alt+KeyN");
    await page.getByRole("heading", { name: "What shall we talk about?" }).waitFor();
    await page.keyboard.press("Alt+ArrowDown");
    await seen(page, "edited");
    await page.keyboard.press("Alt+KeyS");
    await page.keyboard.type("Be brief."); // the first field has the focus
    await page.keyboard.press("Escape");
    expect(await page.getByRole("dialog").count()).toBe(0);
  }));

test("Tab reaches every control, and shows where it is", () =>
  inPage({}, "/", async (page) => {
    await say(page, "hello");
    await answered(page);
    await page.locator(".skip").focus();
    const reached: string[] = [];
    for (let step = 0; step < 40; step += 1) {
      await page.keyboard.press("Tab");
      const focus = await page.evaluate(() => {
        const element = document.activeElement as HTMLElement;
        const style = getComputedStyle(element);
        return {
          name: element.getAttribute("aria-label") ?? element.textContent ?? "",
          isOnPage: element !== document.body,
          id: element.id,
          isShown: style.outlineStyle !== "none" || element.id === "composer",
        };
      });
      if (!focus.isOnPage) break; // past the last one
      expect(focus.isShown, `focus on ${focus.name}`).toBe(true);
      reached.push(focus.id === "composer" ? "composer" : focus.name);
    }
    for (const name of [
      "Chat",
      "Telemetry",
      "New conversation",
      "hello",
      "Token origins",
      "System prompt and sampling",
      "Edit and send again",
      "Answer again",
      "composer",
    ]) {
      expect(reached).toContain(name);
    }
  }));

test("a phone: nothing is cut off, and the list is a drawer", () =>
  inPage(
    { viewport: { width: 360, height: 700 }, hasTouch: true, isMobile: true },
    "/",
    async (page) => {
      await page.getByLabel("Message", { exact: true }).tap();
      await page.keyboard.type("show me code");
      await page.getByRole("button", { name: "Send" }).tap();
      await answered(page);
      const overflow = () =>
        page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      expect(await overflow()).toBeLessThanOrEqual(0);
      expect(await page.getByRole("complementary").count()).toBe(0);
      await page.getByRole("button", { name: "Conversations" }).tap();
      await page.getByRole("complementary").waitFor();
      await page.touchscreen.tap(345, 500); // beside it
      await page.getByRole("complementary").waitFor({ state: "detached" });
      await page.getByRole("button", { name: "Conversations" }).tap();
      await page.keyboard.press("Escape");
      await page.getByRole("complementary").waitFor({ state: "detached" });
      await page.getByRole("button", { name: "Conversations" }).tap();
      await page.getByRole("button", { name: "New conversation" }).tap();
      await page.getByRole("heading", { name: "What shall we talk about?" }).waitFor();
      expect(await page.getByRole("complementary").count()).toBe(0);
      await page.getByRole("link", { name: "Telemetry" }).tap();
      await page.getByRole("heading", { name: "Telemetry" }).waitFor();
      expect(await overflow()).toBeLessThanOrEqual(0);
    },
  ));

test("touch: no hint about keys that are not there, and letters stand level with icons", () =>
  inPage(
    { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
    "/",
    async (page) => {
      await page.getByRole("status").getByText("Connected").waitFor();
      await page.waitForFunction(
        () => document.querySelector(".composer-note")?.textContent === "",
      );
      await page.getByRole("button", { name: "Conversations" }).tap();
      await page.getByRole("complementary").waitFor();
      const levels = async (): Promise<{ text: string; above: number }[]> =>
        page.evaluate(() =>
          [...document.querySelectorAll("button")].flatMap((button) => {
            const icon = button.querySelector("svg")?.getBoundingClientRect();
            const letters = document.createTreeWalker(button, NodeFilter.SHOW_TEXT).nextNode();
            if (icon === undefined || letters === null) return [];
            const range = document.createRange();
            range.selectNodeContents(letters);
            const box = range.getBoundingClientRect();
            const above = icon.top + icon.height / 2 - (box.top + box.height / 2);
            return [{ text: button.innerText.trim(), above }];
          }),
        );
      const chat = await levels();
      await page.getByRole("link", { name: "Telemetry" }).tap();
      await page.getByRole("button", { name: "Pause" }).waitFor();
      const all = [...chat, ...(await levels())];
      expect(all.map((each) => each.text).sort()).toEqual([
        "New conversation",
        "Pause",
        "Token origins",
      ]);
      for (const { text, above } of all) expect(Math.abs(above), text).toBeLessThan(0.6);
    },
  ));

test("no dialog is wider than its frame, and the settings fit a small desk", () =>
  inPage({ viewport: { width: 1280, height: 800 } }, "/", async (page) => {
    await page.getByRole("button", { name: "System prompt and sampling" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.waitFor();
    const over = () =>
      dialog.evaluate((each) => ({
        x: each.scrollWidth - each.clientWidth,
        y: each.scrollHeight - each.clientHeight,
        right: each.getBoundingClientRect().right - window.innerWidth,
      }));
    expect(await over()).toMatchObject({ x: 0, y: 0 });
    for (const width of [320, 360, 390, 480, 760, 1024, 1280]) {
      await page.setViewportSize({ width, height: 640 });
      const now = await over();
      expect(now.x, `at ${width}`).toBe(0);
      expect(now.right, `at ${width}`).toBeLessThanOrEqual(0);
    }
  }));

test("a screen reader is told the answer in whole sentences, and that it ended", () =>
  inPage({}, "/", async (page) => {
    await page.evaluate(() => {
      const said: string[] = [];
      (window as unknown as { said: string[] }).said = said;
      new MutationObserver((changes) => {
        for (const change of changes) {
          for (const node of change.addedNodes) {
            if (change.target instanceof Element && change.target.closest("[aria-live].sr-only")) {
              said.push(node.textContent ?? "");
            }
          }
        }
      }).observe(document.body, { childList: true, subtree: true });
    });
    await say(page, "hello");
    await answered(page);
    await page.waitForFunction(() =>
      (window as unknown as { said: string[] }).said.some((each) => each.includes("End of")),
    );
    const said = () =>
      page.evaluate(() => (window as unknown as { said: string[] }).said.join(" "));
    expect(await said()).toContain("I know 1 messages.");
    await say(page, "show me code");
    await answered(page);
    await page.waitForFunction(
      () => (window as unknown as { said: string[] }).said.join(" ").split("End of the").length > 2,
    );
    const heard = await said();
    expect(heard).toContain("Code, python: def is_palindrome(word: str) -> bool: \"\"\"Whether");
    expect(heard).toContain("letters == letters[::-1] # 2 lists End of code. It takes O(n) time.");
  }));

test("a server with a key asks for it, and remembers it for the tab", async () => {
  const locked = await Server.scripted("--api-key", "open sesame");
  const context = await browser.newContext();
  const { page } = await open(context, locked.url);
  await page.getByLabel("API key").fill("wrong");
  await page.getByRole("button", { name: "Connect" }).click();
  await seen(page, "The server did not accept that key.");
  expect(await violations(page)).toEqual([]);
  await page.getByLabel("API key").fill("open sesame");
  await page.getByRole("button", { name: "Connect" }).click();
  await page.getByRole("status").getByText("Connected").waitFor();
  await say(page, "hello");
  await answered(page);
  await page.reload();
  await page.getByRole("status").getByText("Connected").waitFor();
  expect(await page.evaluate(() => localStorage.getItem("paceline.key"))).toBeNull();
  await context.close();
  await locked.stop();
});
