/** The telemetry page in Chromium. */
import type { Browser, BrowserContextOptions, Page } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { launch, seen, Server } from "./driver";
import { type MockOptions, mockTelemetry } from "./mock_telemetry";

let browser: Browser;
let server: Server;

beforeAll(async () => {
  [browser, server] = await Promise.all([launch(), Server.scripted()]);
});

afterAll(async () => {
  await browser.close();
  await server.stop();
});

type Visit = (page: Page, counter: { sent: number }) => Promise<void>;

async function watch(
  options: MockOptions,
  visit: Visit,
  environment: BrowserContextOptions = { viewport: { width: 1400, height: 1000 } },
): Promise<void> {
  const context = await browser.newContext(environment);
  const page = await context.newPage();
  const errors: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") errors.push(message.text());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  const counter = await mockTelemetry(page, options);
  await page.addInitScript(() => {
    const Original = window.WebSocket;
    window.WebSocket = class extends Original {
      constructor(...given: ConstructorParameters<typeof Original>) {
        super(...given);
        (window as unknown as { pacelineSocket: WebSocket }).pacelineSocket = this;
      }
    };
  });
  await page.goto(`${server.url}/telemetry`);
  await visit(page, counter);
  await context.close();
  expect(errors).toEqual([]);
}

test("200 sessions: all are counted, few are on the page, each can be reached", () =>
  watch({ numSessions: 200 }, async (page) => {
    await page.locator(".session-link").first().waitFor();
    expect(await page.locator(".tile").first().innerText()).toContain("200");
    expect(await page.getByRole("table").getAttribute("aria-rowcount")).toBe("201");
    expect(await page.locator(".session-link").count()).toBeLessThan(60);
    await page.getByRole("button", { name: "Session", exact: true }).click();
    await page
      .getByRole("region", { name: "All sessions" })
      .evaluate((each) => (each.scrollTop = each.scrollHeight));
    await page.locator('tr[aria-rowindex="201"]').waitFor();
  }));

test("a session's detail opens by mouse and keyboard, and closes", () =>
  watch({ numSessions: 30 }, async (page) => {
    const detail = page.getByRole("complementary", { name: "Session detail" });
    await page.locator(".session-link").nth(2).click();
    await detail.waitFor();
    for (const title of ["Speed", "Acceptance", "Steps, by number drafted", "Gate"]) {
      expect(await detail.getByRole("heading", { name: title, exact: true }).count()).toBe(1);
    }
    expect(await detail.locator("canvas").count()).toBe(4);
    await detail.getByRole("button", { name: "Close the detail" }).click();
    await detail.waitFor({ state: "detached" });
    await page.locator(".session-link").nth(4).focus();
    await page.keyboard.press("Enter");
    await detail.waitFor();
  }));

const LANE = "65c1f04bd1c2a9e07b3341aa";

test("beside a detail, at 1280 pixels, tiles fill their rows and no column is cut", () =>
  watch(
    { numSessions: 30 },
    async (page) => {
      await page.locator(".session-link").first().focus();
      await page.keyboard.press("Enter");
      await page.getByRole("complementary", { name: "Session detail" }).waitFor();
      const shape = await page.evaluate(() => {
        const frame = document.querySelector(".tiles")!.getBoundingClientRect();
        const last = [...document.querySelectorAll(".tile")].at(-1)!.getBoundingClientRect();
        const table = document.querySelector(".sessions")!;
        return {
          tilesFree: Math.round(frame.right - last.right),
          tableHidden: table.scrollWidth - table.clientWidth,
          cutHeads: [...document.querySelectorAll(".sessions thead button")]
            .filter((each) => {
              const head = each.closest("th")!.getBoundingClientRect();
              const box = each.getBoundingClientRect();
              return box.right > head.right + 0.5 || box.left < head.left - 0.5;
            })
            .map((each) => (each as HTMLElement).innerText),
          cutCells: [...document.querySelectorAll(".sessions td.number")].filter(
            (each) => each.scrollWidth > each.clientWidth,
          ).length,
          hint: getComputedStyle(document.querySelector(".scroll-hint")!).display,
        };
      });
      expect(shape).toEqual({
        tilesFree: 1,
        tableHidden: 0,
        cutHeads: [],
        cutCells: 0,
        hint: "none",
      });
    },
    { viewport: { width: 1280, height: 900 } },
  ));

test("beside a detail, at the end of the page, its heading and button are below the bar", () =>
  watch(
    { numSessions: 30 },
    async (page) => {
      await page.locator(".session-link").first().focus();
      await page.keyboard.press("Enter");
      const detail = page.getByRole("complementary", { name: "Session detail" });
      await detail.waitFor();
      const tops = () =>
        page.evaluate(() => {
          const bar = document.querySelector(".bar")!.getBoundingClientRect().bottom;
          return [".detail h2", ".detail header button", ".detail"].map(
            (each) => document.querySelector(each)!.getBoundingClientRect().top - bar >= 0,
          );
        });
      await page.locator(".telemetry").evaluate((each) => (each.scrollTop = each.scrollHeight));
      expect(await tops()).toEqual([true, true, true]);
      await detail.evaluate((each) => (each.scrollTop = each.scrollHeight));
      expect(await tops()).toEqual([true, true, true]);
    },
    { viewport: { width: 1280, height: 700 } },
  ));

test("beside a detail, a reason has two lines, and the whole of it is in its hint", () => {
  const cause = "16 tokens copied from earlier text, behind a match of 4";
  const reason = `on: ${cause}; acceptance 0.72 over the last 64 tested`;
  return watch(
    { numSessions: 30, reason: () => reason },
    async (page) => {
      await page.locator(".session-link").first().focus();
      await page.keyboard.press("Enter");
      await page.getByRole("complementary", { name: "Session detail" }).waitFor();
      const cell = page.locator(".reason-cell").first();
      expect(await cell.getAttribute("title")).toBe(reason);
      const shape = await cell.locator(".reason").evaluate((each) => {
        const row = each.closest("tr")!.getBoundingClientRect();
        const box = each.getBoundingClientRect();
        return { row: row.height, isInRow: box.top >= row.top && box.bottom <= row.bottom, box };
      });
      expect(shape).toMatchObject({ row: 36, isInRow: true });
      expect(shape.box.height).toBe(32);
      expect(shape.box.width).toBeGreaterThan(85);
    },
    { viewport: { width: 1280, height: 900 } },
  );
});

test("it is said what is counted, and of sessions that rest how they were", () =>
  watch({ numSessions: 11 }, async (page) => {
    await page.locator(".session-link").first().waitFor();
    expect(await page.locator(".tile").first().innerText()).toMatch(/Connections\s+11\s+open/);
    expect(await page.locator(".count").innerText()).toBe("11 listed, 10 answering");
    const resting = page.locator('tr[data-active="false"]');
    expect(await resting.locator(".gate").innerText()).toMatch(/^was (on|off|probing)$/);
    expect(await resting.innerText()).toContain("done");
    await resting.locator(".session-link").click();
    const detail = page.getByRole("complementary", { name: "Session detail" });
    await detail.locator(".facts").getByText("done").waitFor();
    expect(await detail.locator(".gate-changes time").first().innerText()).toMatch(/^\d\d:\d\d:\d\d$/);
  }));

test("a phone: the detail comes into view, closing it leads back, the table says it scrolls", () =>
  watch(
    { numSessions: 30 },
    async (page) => {
      await page.locator(".scroll-hint").waitFor();
      await page.locator(".session-link").nth(2).focus();
      await page.keyboard.press("Enter");
      const detail = page.getByRole("complementary", { name: "Session detail" });
      await detail.waitFor();
      await page.waitForFunction(() => {
        const box = document.querySelector(".detail h2")!.getBoundingClientRect();
        return box.top >= 0 && box.bottom < window.innerHeight / 2;
      });
      await detail.getByRole("button", { name: "Close the detail" }).tap();
      await detail.waitFor({ state: "detached" });
      await page.waitForFunction(() => {
        const row = document.activeElement!;
        const box = row.getBoundingClientRect();
        return row.classList.contains("session-link") && box.top >= 0 && box.bottom < innerHeight;
      });
    },
    { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
  ));

test("a session is named in short, with the whole in a hint and to copy", () =>
  watch(
    { numSessions: 1, lane: () => LANE },
    async (page) => {
      await page.locator(".session-link").click();
      const detail = page.getByRole("complementary", { name: "Session detail" });
      const heading = detail.getByRole("heading", { level: 2 });
      await heading.waitFor();
      expect((await heading.innerText()).trim()).toBe("5eed0000 65c1f04b…");
      expect(await heading.getAttribute("title")).toBe(`sess_5eed0000, lane ${LANE}`);
      expect(await detail.innerText()).not.toContain(LANE);
      await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
      await detail.getByRole("button", { name: "Copy the lane's id" }).click();
      await detail.getByRole("button", { name: "Copied" }).waitFor();
      expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(LANE);
    },
  ));

test("the page's words are explained", () =>
  watch({ numSessions: 2 }, async (page) => {
    await page.getByText("What these words mean").click();
    const words = await page.locator(".meanings dt").allInnerTexts();
    for (const word of ["Acceptance", "Gate", "Ledger", "Blocks", "Tested"]) {
      expect(words).toContain(word);
    }
    expect(await page.locator(".meanings dd").first().isVisible()).toBe(true);
    expect(await page.getByRole("button", { name: "Acceptance" }).getAttribute("title")).toContain(
      "the last 64",
    );
  }));

test("a pause holds everything still while samples go on, and then catches up", () =>
  watch({ numSessions: 20, everyMs: 100 }, async (page, counter) => {
    await page.locator(".session-link").first().waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("button", { name: "Paused: go on" }).waitFor();
    await page.locator(".session-link").nth(1).click();
    await page.getByRole("complementary", { name: "Session detail" }).waitFor();
    const shown = () => page.locator(".telemetry-body").innerText();
    const held = await shown();
    const { sent } = counter;
    while (counter.sent < sent + 8) await page.waitForTimeout(100);
    expect(await shown()).toBe(held);
    await page.getByRole("button", { name: "Paused: go on" }).click();
    await page.waitForFunction(
      (before) => (document.querySelector(".telemetry-body") as HTMLElement).innerText !== before,
      held,
    );
  }));

test("the time window is chosen", () =>
  watch({ numSessions: 5 }, async (page) => {
    await page.locator(".session-link").first().waitFor();
    await page.getByRole("button", { name: "15 min" }).click();
    expect(await page.getByRole("button", { name: "15 min" }).getAttribute("aria-pressed")).toBe(
      "true",
    );
  }));

test("without the admin key one sees one's own session", () =>
  watch({ numSessions: 2, isAdmin: false }, async (page) => {
    await seen(page, "This browser's own session");
    await page.locator(".session-link").first().waitFor();
  }));

test("an hour of samples takes no more memory than a quarter", () =>
  watch({ numSessions: 50, everyMs: 60_000 }, async (page) => {
    // The samples of an hour go in through the page's own socket, faster than an hour.
    await page.getByRole("heading", { name: "Telemetry" }).waitFor();
    const session = await page.context().newCDPSession(page);
    const used = async (): Promise<number> => {
      await session.send("HeapProfiler.collectGarbage");
      const { usedSize } = await session.send("Runtime.getHeapUsage");
      return usedSize;
    };
    const record = (from: number, to: number) =>
      page.evaluate(
        async ([start, end]) => {
          const feed = (window as unknown as { feedTelemetry(from: number, to: number): void })
            .feedTelemetry;
          for (let at = start as number; at < (end as number); at += 200) {
            feed(at, Math.min(at + 200, end as number));
            await new Promise((resolve) => setTimeout(resolve, 0));
          }
        },
        [from, to],
      );
    await page.evaluate(FEED);
    await record(0, 1800);
    const quarter = await used();
    await record(1800, 7200);
    expect((await used()) / quarter).toBeLessThan(1.25);
    expect(await page.locator(".tile").first().innerText()).toContain("50"); // it did take them
  }));

/** Puts samples onto the page's open socket, as if the server had sent them. */
const FEED = `
  window.feedTelemetry = (from, to) => {
    const socket = window.pacelineSocket;
    for (let at = from; at < to; at += 1) {
      const sessions = Array.from({ length: 50 }, (_, index) => ({
        session_id: "sess_" + index, lane: null, active: true, gate: at % 40 < 20 ? "on" : "off",
        reason: "acceptance " + at, drafter: "model", acceptance: 0.5,
        accepted_per_position: [at], examined_per_position: [at + 1], passed_per_position: [at], gamma_histogram: [at, at],
        tokens_per_step: 2, tokens_per_second: 9, time_to_first_token_ms: 9,
        draft_ms: 1, verify_ms: 1, sample_ms: 1, other_ms: 1,
      }));
      const sample = {
        type: "telemetry.sample", sequence_number: at, stream_id: "telemetry", scope: "server",
        time: 1000 + at / 2, sessions, ledger_level_ms: 0, ledger_capacity_ms: 50, server: null,
      };
      socket.onmessage({ data: JSON.stringify(sample) });
    }
  };
`;
