/** The chat, in Chromium, against the real server before a scripted engine. */
import type { Browser, BrowserContext, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import {
  answered,
  lastAnswer,
  launch,
  open,
  say,
  seen,
  Server,
  stored,
  violations,
  type Watched,
} from "./driver";

let browser: Browser;
let server: Server;
let context: BrowserContext;
let watched: Watched[];

beforeAll(async () => {
  [browser, server] = await Promise.all([launch(), Server.scripted()]);
});

afterAll(async () => {
  await browser.close();
  await server.stop();
});

beforeEach(async () => {
  context = await browser.newContext();
  watched = [];
});

afterEach(async () => {
  await context.close();
  expect(watched.flatMap((each) => each.errors)).toEqual([]);
});

async function chat(path = "/"): Promise<Page> {
  const opened = await open(context, server.url + path);
  watched.push(opened);
  return opened.page;
}

/** Errors that a browser logs by itself when a server goes away are no fault of the page. */
function forgiveLostServer(): void {
  for (const each of watched) {
    const others = each.errors.filter(
      (text) => !/ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|WebSocket connection/.test(text),
    );
    each.errors.splice(0, each.errors.length, ...others);
  }
}

test("an answer streams in, becomes markdown, and says how it was made", async () => {
  const page = await chat();
  await say(page, "slow");
  const isBusy = () => lastAnswer(page).getAttribute("aria-busy");
  await seen(page, "word 3 ");
  expect(await isBusy()).toBe("true");
  expect(await lastAnswer(page).innerText()).not.toContain("word 6999");
  await seen(page, "word 60 ");
  expect(await isBusy()).toBe("true");
  await page.keyboard.press("Escape");
  await seen(page, "Stopped.");
  await say(page, "show me code");
  await answered(page);
  const answer = lastAnswer(page);
  expect(await answer.locator("pre code").innerText()).toContain("def is_palindrome");
  expect(await answer.locator("strong").innerText()).toBe("palindrome");
  expect(await answer.locator("table tr").count()).toBe(3);
  expect(await answer.locator(".hljs-keyword").count()).toBeGreaterThan(0);
  const measures = await answer.locator(".measures").innerText();
  for (const word of ["tok/s", "first token", "accepted", "tokens/step", "vs plain"]) {
    expect(measures).toContain(word);
  }
});

test("code is copied as it is", async () => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: server.url });
  const page = await chat();
  await say(page, "show me code");
  await answered(page);
  await page.getByRole("button", { name: "Copy", exact: true }).click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  expect(copied.startsWith("def is_palindrome(word: str) -> bool:\n    ")).toBe(true);
  expect(copied.endsWith("# 2 lists")).toBe(true);
});

test("tokens are coloured by their origin, and join to the text", async () => {
  const page = await chat();
  await say(page, "a few words more than usual");
  await answered(page);
  await page.getByRole("button", { name: "Token origins" }).click();
  const tokens = page.locator(".tokens [data-source]");
  const sources = await tokens.evaluateAll((all) =>
    all.map((each) => (each as HTMLElement).dataset["source"]),
  );
  expect(new Set(sources)).toEqual(new Set(["accepted", "residual", "bonus", "plain"]));
  expect(await page.locator(".tokens").innerText()).toBe(
    "You said: a few words more than usual\n\nI know 1 messages.",
  );
  expect(await page.locator(".legend").innerText()).toContain("corrected");
});

test("stopping in mid-answer keeps what came and frees the engine", async () => {
  const page = await chat();
  const before = server.lines.length;
  await say(page, "slow");
  await seen(page, "word 3 ");
  await page.getByRole("button", { name: "Stop" }).click();
  await seen(page, "Stopped.");
  expect(await server.line(/finished cancelled/, before)).toBe("finished cancelled running 0");
  expect(await lastAnswer(page).innerText()).toContain("word 3 ");
  await say(page, "hello");
  await answered(page);
  expect(await lastAnswer(page).innerText()).toContain("I know 3 messages.");
});

test("an answer is made again, and the one before stays", async () => {
  const page = await chat();
  await say(page, "hello");
  await answered(page);
  await page.getByRole("button", { name: "Answer again" }).click();
  await seen(page, "2 of 2");
  await answered(page);
  await page.getByRole("button", { name: "The version before" }).click();
  await seen(page, "1 of 2");
  expect(await page.getByRole("article", { name: "Answer" }).count()).toBe(1);
});

test("a message is edited and sent again", async () => {
  const page = await chat();
  await say(page, "first");
  await answered(page);
  await say(page, "second");
  await answered(page);
  await page.getByRole("button", { name: "Edit and send again" }).last().click();
  const editor = page.getByRole("form", { name: "Edit the message" });
  await editor.getByLabel("Message").fill("other");
  await editor.getByRole("button", { name: "Send" }).click();
  await seen(page, "You said: other");
  await answered(page);
  expect(await lastAnswer(page).innerText()).toContain("I know 3 messages.");
  expect(await page.getByRole("article", { name: "You" }).last().innerText()).toContain("2 of 2");
});

test("a reload brings the conversation back, and it goes on", async () => {
  const page = await chat();
  await say(page, "remember me");
  await answered(page);
  await page.reload();
  await seen(page, "You said: remember me");
  await say(page, "still there?");
  await seen(page, "I know 3 messages.");
  await answered(page);
});

/**
 * The page's writes to its database wait from now on, as on a busy disk, until the page is gone or
 * calls what this gives back.
 */
async function holdDatabase(page: Page): Promise<() => Promise<void>> {
  await page.getByRole("status").getByText("Connected").waitFor();
  const held = await page.evaluateHandle(
    () =>
      new Promise<{ isHeld: boolean }>((resolve, reject) => {
        const state = { isHeld: true };
        const opening = indexedDB.open("paceline");
        opening.onerror = () => reject(opening.error);
        opening.onsuccess = () => {
          const names = ["conversations", "messages"];
          const messages = opening.result.transaction(names, "readwrite").objectStore("messages");
          const goOn = (): void => {
            messages.count().onsuccess = () => {
              resolve(state);
              if (state.isHeld) goOn();
            };
          };
          goOn();
        };
      }),
  );
  return () => held.evaluate((state) => void (state.isHeld = false));
}

/** Until the tab remembers so many writes that its database has not confirmed. */
async function unconfirmed(page: Page, count: number): Promise<void> {
  await page.waitForFunction((wanted) => {
    const keys = Array.from({ length: sessionStorage.length }, (_, at) => sessionStorage.key(at));
    return keys.filter((key) => key?.startsWith("paceline.unconfirmed.")).length === wanted;
  }, count);
}

test("a reload loses nothing that the browser has not stored yet", async () => {
  const page = await chat();
  await holdDatabase(page);
  await say(page, "remember me");
  await answered(page);
  await page.reload();
  await seen(page, "You said: remember me");
  await answered(page);
  expect(await page.getByRole("article", { name: "You" }).innerText()).toContain("remember me");
  expect(await page.getByText("begun anew").count()).toBe(0);
  await holdDatabase(page);
  await say(page, "still there?");
  await seen(page, "I know 3 messages.");
  await answered(page);
  await page.reload();
  await seen(page, "I know 3 messages.");
  expect(await page.getByRole("article", { name: "Answer" }).count()).toBe(2);
});

test("a reload right after sending keeps the question, and it is answered", async () => {
  const page = await chat();
  await holdDatabase(page);
  const before = server.lines.length;
  await say(page, "slow");
  await page.reload();
  await server.line(/finished cancelled/, before);
  await seen(page, "word 400 ");
  expect(await page.getByRole("article", { name: "You" }).innerText()).toContain("slow");
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByRole("button", { name: "Send (Enter)" }).waitFor();
});

test("a reload right after stopping begins nothing anew", async () => {
  const page = await chat();
  await say(page, "slow");
  await stored(page, "word 3 ");
  await holdDatabase(page);
  await page.keyboard.press("Escape");
  await page.reload();
  await answered(page);
  await page.getByRole("button", { name: "Send (Enter)" }).waitFor();
  expect(await page.getByRole("article", { name: "Answer" }).innerText()).not.toContain("of 2");
});

test("a reload right after a change keeps the title and the settings", async () => {
  const page = await chat();
  await say(page, "hello");
  await answered(page);
  await holdDatabase(page);
  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  await page.getByLabel("System prompt", { exact: true }).fill("Be kind.");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Rename hello" }).click();
  await page.getByLabel("Title").fill("A better name");
  await page.keyboard.press("Enter");
  await page.reload();
  await seen(page, "You said: hello");
  expect(await page.getByRole("heading", { level: 1 }).innerText()).toBe("A better name");
  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  expect(await page.getByLabel("System prompt", { exact: true }).inputValue()).toBe("Be kind.");
});

test("a reload right after a deletion brings nothing back", async () => {
  const page = await chat();
  await say(page, "hello");
  await answered(page);
  await holdDatabase(page);
  await page.getByRole("button", { name: "Delete hello" }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("heading", { name: "What shall we talk about?" }).waitFor();
  await page.reload();
  await page.getByRole("heading", { name: "What shall we talk about?" }).waitFor();
  expect(await page.locator(".conversation-link").count()).toBe(0);
});

test("a duplicated tab, made while little was stored, changes nothing back", async () => {
  const page = await chat();
  const release = await holdDatabase(page);
  await say(page, "hello");
  await answered(page);
  const opening = context.waitForEvent("page");
  // A window that a page opens begins with a copy of its storage, as a duplicate does.
  await page.evaluate(() => window.open("about:blank"));
  const duplicate = await opening;
  await page.bringToFront();
  await release();
  await page.getByRole("button", { name: "Rename hello" }).click();
  await page.getByLabel("Title").fill("A better name");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Answer again" }).click();
  await seen(page, "2 of 2");
  await answered(page);
  await unconfirmed(page, 0);
  await unconfirmed(duplicate, 3);
  await duplicate.goto(page.url());
  await seen(duplicate, "2 of 2");
  expect(await duplicate.getByRole("heading", { level: 1 }).innerText()).toBe("A better name");
  await unconfirmed(duplicate, 0);
  await page.reload();
  await seen(page, "2 of 2");
  expect(await page.getByRole("heading", { level: 1 }).innerText()).toBe("A better name");
});

test("what was written and not sent is there after a reload", async () => {
  const page = await chat();
  await say(page, "hello");
  await answered(page);
  await page.getByLabel("Message", { exact: true }).fill("half a thought");
  await page.reload();
  await seen(page, "You said: hello");
  expect(await page.getByLabel("Message", { exact: true }).inputValue()).toBe("half a thought");
});

test("a reload in mid-answer keeps what came, frees the engine and begins the answer anew", async () => {
  const page = await chat();
  const before = server.lines.length;
  await say(page, "slow");
  await seen(page, "word 400 ");
  await stored(page, "word 30 ");
  await page.reload();
  await seen(page, "The page was reloaded, so this answer was begun anew.");
  await server.line(/finished cancelled/, before);
  await seen(page, "word 3 ");
  await page.keyboard.press("Escape");
  await seen(page, "Stopped.");
  await page.getByRole("button", { name: "The version before" }).click();
  await seen(page, "The answer broke off here.");
  expect(await lastAnswer(page).innerText()).toContain("word 30 ");
});

test("a tab that opens the conversation later begins nothing", async () => {
  const page = await chat();
  await say(page, "slow");
  await stored(page, "word 3 ");
  const address = new URL(page.url()).hash;
  await page.close();
  const other = await chat(`/${address}`);
  await seen(other, "The answer broke off here.");
  expect(await other.getByRole("article", { name: "Answer" }).count()).toBe(1);
  expect(await lastAnswer(other).innerText()).toContain("word 3 ");
});

test("a long title is cut by the page alone, and whole in its hint", async () => {
  const page = await chat();
  const question = `hello ${"and so on, ".repeat(12)}and that is all`;
  await say(page, question);
  await answered(page);
  for (const shown of [page.locator(".conversation-link"), page.locator(".conversation-title")]) {
    expect(await shown.textContent()).toBe(question);
    expect(await shown.getAttribute("title")).toBe(question);
    expect(await shown.evaluate((each) => getComputedStyle(each).textOverflow)).toBe("ellipsis");
  }
});

test("the reason under an answer has no acceptance beside the answer's own", async () => {
  const page = await chat();
  await say(page, "hello there, how are you");
  await answered(page);
  const why = page.locator(".why");
  expect(await why.innerText()).toBe("Speculation on: the draft model drafts 3 tokens");
  expect(await why.getAttribute("title")).toContain("acceptance 0.67 over the last 24 tested");
});

test("a server that restarts between two turns goes on where it was", async () => {
  const page = await chat();
  await say(page, "before");
  await answered(page);
  const { port } = server;
  await server.stop();
  await page.getByRole("status").getByText("Reconnecting").waitFor();
  await say(page, "meanwhile");
  await seen(page, "Waiting for the server");
  server = await Server.scripted("--port", port);
  await seen(page, "I know 3 messages.");
  await answered(page);
  forgiveLostServer();
});

test("a server that dies in mid-answer: the answer is begun anew, and nothing is lost", async () => {
  const page = await chat();
  await say(page, "slow");
  await seen(page, "word 30 ");
  const { port } = server;
  await server.stop("SIGKILL");
  await seen(page, "Waiting for the server");
  // What had come stays readable, and the versions can be switched, while the server is away.
  expect(await lastAnswer(page).innerText()).toContain("word 30 ");
  expect(await lastAnswer(page).innerText()).toContain("begun anew as soon as the server is back");
  await page.getByRole("button", { name: "The version before" }).click();
  await seen(page, "The answer broke off here.");
  expect(await page.getByRole("button", { name: "Stop" }).isVisible()).toBe(true);
  await page.getByRole("button", { name: "The next version" }).click();
  await seen(page, "Waiting for the server");
  server = await Server.scripted("--port", port);
  await page.locator(".waiting").waitFor({ state: "detached" });
  await seen(page, "so this answer was begun anew");
  await seen(page, "word 30 ");
  await page.keyboard.press("Escape");
  await seen(page, "Stopped.");
  await page.getByRole("button", { name: "The version before" }).click();
  await seen(page, "The answer broke off here.");
  expect(await lastAnswer(page).innerText()).toContain("word 30 ");
  forgiveLostServer();
});

test("two tabs show one conversation, and each may go on with it", async () => {
  const one = await chat();
  await say(one, "from one");
  await answered(one);
  const other = await chat(new URL(one.url()).hash.replace(/^/, "/"));
  await seen(other, "You said: from one");
  await say(other, "from the other");
  await seen(other, "I know 3 messages.");
  await seen(one, "You said: from the other");
  await answered(other);
  await say(one, "from one again");
  await seen(one, "I know 5 messages.");
  await seen(other, "You said: from one again");
  await answered(one);
});

test("a tab stops an answer that another one writes", async () => {
  const one = await chat();
  await say(one, "slow");
  await seen(one, "word 3 ");
  const other = await chat(new URL(one.url()).hash.replace(/^/, "/"));
  await seen(other, "word 3 ");
  await other.getByRole("button", { name: "Stop" }).click();
  await seen(one, "Stopped.");
});

test("two conversations stream at once", async () => {
  const page = await chat();
  await say(page, "slow");
  await seen(page, "word 3 ");
  await page.getByRole("button", { name: "New conversation" }).click();
  await say(page, "hello");
  await seen(page, "I know 1 messages.");
  await page.getByRole("button", { name: "slow", exact: true }).click();
  await seen(page, "word 30 ");
  await page.keyboard.press("Escape");
  await seen(page, "Stopped.");
});

test("a server on its way out says so, and a message waits for its return", async () => {
  const leaving = await Server.scripted("--grace-period", "60");
  const { port } = leaving;
  const opened = await open(context, leaving.url);
  watched.push(opened);
  const { page } = opened;
  await say(page, "slow");
  await seen(page, "word 3 ");
  const ended = leaving.stop();
  // The answer that runs may go on; a new request is refused, and that is how a page knows.
  await page.getByRole("button", { name: "New conversation" }).click();
  await say(page, "hello");
  const status = page.getByRole("status");
  for (;;) {
    await answeredOrWaiting(page);
    if ((await status.innerText()).includes("Server shutting down")) break;
    await say(page, "hello");
  }
  await seen(page, "Waiting for the server");
  await page.getByText("The server is shutting down. What you send").waitFor();
  await page.getByRole("button", { name: "slow", exact: true }).click();
  await page.getByRole("button", { name: "Stop" }).click();
  await ended;
  await status.getByText("Server was shut down. Reconnecting").waitFor();
  const back = await Server.scripted("--port", port);
  await status.getByText("Connected").waitFor();
  await page.getByRole("button", { name: "hello", exact: true }).click();
  await seen(page, "You said: hello");
  await answered(page);
  await context.close();
  await back.stop();
  forgiveLostServer();
});

/** Until the newest answer has ended or waits for the server. */
async function answeredOrWaiting(page: Page): Promise<void> {
  await page.waitForFunction(() => {
    const answer = [...document.querySelectorAll("article.answer")].at(-1);
    return answer && (answer.ariaBusy !== "true" || answer.textContent?.includes("Waiting for"));
  });
}

test("an answer ends at a limit, which is told, and can go on or have another", async () => {
  const page = await chat();
  await say(page, "endless");
  await seen(page, "Stopped at the limit of 1,024 tokens.");
  await page.getByRole("button", { name: "Change the limit" }).click();
  await page.getByLabel("Longest answer").fill("600");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("button", { name: "Answer again" }).click();
  await seen(page, "Stopped at the limit of 600 tokens.");
  await page.getByRole("button", { name: "Continue", exact: true }).click();
  await seen(page, "You said: Continue where you stopped.");
  await answered(page);
});

test("each field of the settings says what would be right", async () => {
  const page = await chat();
  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  await page.getByLabel("Temperature").fill("abc");
  await page.getByLabel("Top-p").fill("0");
  await page.getByLabel("Min-p").fill("0.05");
  await page.getByLabel("Drafted tokens").fill("17");
  await page.getByRole("button", { name: "Save" }).click();
  const problems = page.locator(".field .problem");
  await problems.first().waitFor();
  expect(await problems.allInnerTexts()).toEqual([
    "This must be a number from 0 to 5, or empty.",
    "This must be a number above 0, up to 1, or empty.",
    "This must be a whole number from 0 to 16, or empty.",
  ]);
  const temperature = page.getByLabel("Temperature");
  expect(await temperature.evaluate((each) => each === document.activeElement)).toBe(true);
  expect(await temperature.inputValue()).toBe("abc");
  expect(await temperature.getAttribute("aria-invalid")).toBe("true");
  expect(await violations(page)).toEqual([]);
  await temperature.fill("0.5");
  await page.getByLabel("Top-p").fill("");
  await page.getByLabel("Drafted tokens").fill("3");
  expect(await problems.count()).toBe(0);
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  expect(await page.getByLabel("Temperature").inputValue()).toBe("0.5");
  expect(await page.getByLabel("Min-p").inputValue()).toBe("0.05");
});

test("the system prompt and the sampling settings reach the server", async () => {
  const page = await chat();
  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  await page.getByLabel("System prompt", { exact: true }).fill("Be kind.");
  await page.getByLabel("Longest answer").fill("30");
  await page.getByRole("button", { name: "Save" }).click();
  await say(page, "hello");
  await seen(page, "Stopped at the limit of 30 tokens.");
  await page.getByRole("button", { name: "System prompt and sampling" }).click();
  expect(await page.getByLabel("System prompt", { exact: true }).inputValue()).toBe("Be kind.");
  await page.getByLabel("Longest answer").fill("");
  await page.getByLabel("Temperature").fill("-1");
  await page.getByRole("button", { name: "Save" }).click();
  expect(await page.getByRole("dialog").isVisible()).toBe(true); // the field says what is wrong
  await page.getByLabel("Temperature").fill("0");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("button", { name: "Answer again" }).click();
  await seen(page, "The system prompt is: Be kind.");
});

test("what the server refuses is told in its words", async () => {
  const page = await chat();
  await say(page, "refuse me");
  await page.getByRole("alert").getByText("The template refuses these messages.").waitFor();
});

test("what is too long is refused with advice, however long it is", async () => {
  const page = await chat();
  await say(page, "word ".repeat(14_000));
  const alert = page.getByRole("alert");
  await alert.getByText(/^The prompt has .* Shorten the message, or begin a new/).waitFor();
  await page.getByRole("button", { name: "New conversation" }).click();
  await say(page, "word ".repeat(300_000)); // more than a message to the server may hold
  await alert.getByText(/^The conversation is larger than a message .* Shorten/).waitFor();
  await page.getByRole("status").getByText("Connected").waitFor();
});

test("conversations are renamed and deleted", async () => {
  const page = await chat();
  await say(page, "hello");
  await answered(page);
  await page.getByRole("button", { name: "Rename hello" }).click();
  await page.getByLabel("Title").fill("A better name");
  await page.keyboard.press("Enter");
  expect(await page.getByRole("heading", { level: 1 }).innerText()).toBe("A better name");
  await page.getByRole("button", { name: "Delete A better name" }).click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("heading", { name: "What shall we talk about?" }).waitFor();
  await page.reload();
  await page.getByRole("heading", { name: "What shall we talk about?" }).waitFor();
  expect(await page.locator(".conversation-link").count()).toBe(0);
});

test("the reader who scrolls up is left there", async () => {
  const page = await chat();
  await say(page, "a long one");
  await seen(page, "Paragraph 9");
  await page.getByRole("region", { name: "Messages" }).evaluate((each) => (each.scrollTop = 0));
  await answered(page);
  const top = () =>
    page.getByRole("region", { name: "Messages" }).evaluate((each) => each.scrollTop);
  expect(await top()).toBe(0);
  await page.getByRole("button", { name: "To the newest message" }).click();
  await page.waitForFunction(() => (document.querySelector(".thread")?.scrollTop ?? 0) > 0);
});
