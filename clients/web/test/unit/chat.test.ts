import { describe, expect, test } from "vitest";
import { Announcer } from "../../src/chat/announcer";
import { errorInWords } from "../../src/chat/error_words";
import { countSources, gainOf, measuresOf, milliseconds, whyOf } from "../../src/chat/measures";
import { SERVER_DEFAULTS, newConversation, newMessage, titleFrom } from "../../src/chat/records";
import { requestFor } from "../../src/chat/request";
import { NUMBER_FIELDS, parseNumber, writeNumber } from "../../src/chat/sampling_fields";
import { itemsOf, newestLeafUnder, pathTo, variantsOf, versionBefore } from "../../src/chat/tree";
import { SUMMARY } from "./fakes";

describe("the tree of messages", () => {
  const root = { ...newMessage("c", null, "user", 1, "q"), id: "root" };
  const one = { ...newMessage("c", "root", "assistant", 2, "a1"), id: "one" };
  const two = { ...newMessage("c", "root", "assistant", 3, "a2"), id: "two" };
  const under = { ...newMessage("c", "two", "user", 4, "q2"), id: "under" };
  const messages = new Map([root, one, two, under].map((each) => [each.id, each]));

  test("has a path to each leaf", () => {
    expect(pathTo(messages, "under").map((each) => each.id)).toEqual(["root", "two", "under"]);
    expect(pathTo(messages, "unknown")).toEqual([]);
    expect(pathTo(messages, null)).toEqual([]);
  });

  test("survives a loop", () => {
    const loop = new Map([
      ["a", { ...root, id: "a", parentId: "b" }],
      ["b", { ...root, id: "b", parentId: "a" }],
    ]);
    expect(pathTo(loop, "a")).toHaveLength(2);
  });

  test("has versions and newest leaves", () => {
    expect(variantsOf(messages, one).map((each) => each.id)).toEqual(["one", "two"]);
    expect(newestLeafUnder(messages, "root")).toBe("under");
    expect(newestLeafUnder(messages, "one")).toBe("one");
  });

  test("knows the version before that has text", () => {
    expect(versionBefore(messages, two)?.id).toBe("one");
    expect(versionBefore(messages, one)).toBeNull();
    const silent = new Map(messages).set("one", { ...one, text: "" });
    expect(versionBefore(silent, two)).toBeNull();
  });

  test("leaves out answers without text", () => {
    expect(itemsOf([root, { ...one, text: "" }])).toEqual([
      { type: "message", role: "user", content: "q" },
    ]);
  });
});

describe("the request", () => {
  const path = [newMessage("c", null, "user", 1, "hello")];

  test("leaves to the server what is not set, but never asks for an endless answer", () => {
    expect(requestFor(newConversation(0), path, null)).toEqual({
      type: "response.create",
      input: [{ type: "message", role: "user", content: "hello" }],
      max_output_tokens: 1024,
      paceline: { include: ["tokens"] },
    });
  });

  test("has every setting where the protocol wants it", () => {
    const conversation = {
      ...newConversation(0),
      instructions: "Be brief.",
      sampling: {
        ...SERVER_DEFAULTS,
        temperature: 0,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.05,
        repetition_penalty: 1.1,
        max_output_tokens: 64,
        seed: 7,
        stop: ["END"],
        speculation: "off" as const,
      },
    };
    expect(requestFor(conversation, path, null)).toMatchObject({
      instructions: "Be brief.",
      temperature: 0,
      top_p: 0.9,
      max_output_tokens: 64,
      paceline: {
        top_k: 40,
        min_p: 0.05,
        repetition_penalty: 1.1,
        seed: 7,
        stop: ["END"],
        speculation: "off",
        include: ["tokens"],
      },
    });
  });
});

describe("measures", () => {
  test("are those that the server gave", () => {
    const shown = Object.fromEntries(
      measuresOf(SUMMARY, 20).map((measure) => [measure.label, measure.value]),
    );
    expect(shown).toEqual({
      tokens: "20",
      "tok/s": "90.0",
      "first token": "40 ms",
      accepted: "83 %",
      "tokens/step": "2.50",
      "vs plain": "1.50×",
    });
  });

  test("of one token are about that answer alone, and in the singular", () => {
    const reason = "on: 11 tokens copied from earlier text, behind a match of 4";
    const summary = { ...SUMMARY, num_drafted: 0, acceptance: null, tokens_per_step: 1, reason };
    const labels = measuresOf(summary, 1).map((each) => each.label);
    expect(labels).toEqual(["token", "tok/s", "first token"]);
    expect(whyOf(summary, 1)).toBeNull();
    expect(whyOf(summary, 2)?.cause).toContain("11 tokens copied");
    expect(measuresOf(summary, 1980)[0]).toMatchObject({ label: "tokens", value: "1,980" });
  });

  test("a loss is shown as a loss", () => {
    expect(gainOf({ ...SUMMARY, expected_plain_ms: 90 })).toBeCloseTo(0.9);
  });

  test("no gain is claimed without an estimate, or without a draft", () => {
    expect(gainOf({ ...SUMMARY, expected_plain_ms: null })).toBeNull();
    expect(gainOf({ ...SUMMARY, num_drafted: 0 })).toBeNull();
    const labels = measuresOf({ ...SUMMARY, expected_plain_ms: null, acceptance: null }, null);
    expect(labels.map((each) => each.label)).toEqual(["tok/s", "first token", "tokens/step"]);
  });

  test("the reason has no second acceptance beside the answer's own", () => {
    const reason = "off: too little was accepted, a probe is due; acceptance 0.31 over the last 64 tested";
    expect(whyOf({ ...SUMMARY, gate: "off", reason }, 20)).toEqual({
      cause: "Speculation off: too little was accepted, a probe is due",
      evidence: "In this conversation of late: acceptance 0.31 over the last 64 tested.",
    });
    expect(whyOf({ ...SUMMARY, reason: "on: 3 tokens, as the request asked" }, null)).toEqual({
      cause: "Speculation on: 3 tokens, as the request asked",
      evidence: null,
    });
    expect(whyOf({ ...SUMMARY, reason: "" }, 20)).toBeNull();
  });

  test("times have three digits", () => {
    expect([3.14159, 42.4, 1234, 12345].map(milliseconds)).toEqual([
      "3.1 ms",
      "42 ms",
      "1.23 s",
      "12.3 s",
    ]);
  });

  test("sources are counted", () => {
    const tokens = (["accepted", "accepted", "residual"] as const).map((source) => ({
      id: 1,
      text: "x",
      source,
    }));
    expect(countSources(tokens)).toEqual({ accepted: 2, residual: 1, bonus: 0, plain: 0 });
  });
});

test("a title is one line, and whole unless it is no title any more", () => {
  expect(titleFrom("  Two\nlines ")).toBe("Two lines");
  expect(titleFrom("   ")).toBe("New conversation");
  const question = "word ".repeat(30).trim();
  expect(titleFrom(question)).toBe(question);
  const document = titleFrom("word ".repeat(3000));
  expect(document.length).toBeLessThanOrEqual(301);
  expect(document.endsWith("word…")).toBe(true);
});

test("a screen reader hears each sentence once, and the rest at the end", () => {
  const announcer = new Announcer();
  const heard = ["Hel", "Hello **you**. How", "Hello **you**. How are you? I"].map((text) =>
    announcer.grow(text),
  );
  expect(heard).toEqual(["", "Hello you.", "How are you?"]);
  expect(announcer.finish("Hello **you**. How are you? I am fine")).toBe("I am fine");
});

const CODE_ANSWER = [
  "Here is `add_numbers(a, b)`, a **short** one:",
  "",
  "```python",
  "def add_numbers(num1, num2):",
  "    # adds them. Really: it does",
  "    return num1 + num2 * 2 ** 3",
  "```",
  "",
  "## How it works",
  "",
  "1. It takes `num_1`; it's _not_ `x | y`.",
  "2. See [the manual](https://example.org/a_b).",
  "",
  "- snake_case stays, and __init__ is bold, as on the page",
  "",
  "| name | value |",
  "|---|---:|",
  "| a_b. | 1 > 0 |",
].join("\n");

const CODE_HEARD = [
  "Here is add_numbers(a, b), a short one:",
  "Code, python:",
  "def add_numbers(num1, num2): # adds them. Really: it does return num1 + num2 * 2 ** 3",
  "End of code.",
  "How it works",
  "1. It takes num_1; it's not x | y. 2. See the manual.",
  "snake_case stays, and init is bold, as on the page",
  "name, value. a_b., 1 > 0.",
].join(" ");

test("a screen reader hears what is shown: names whole, code as code, no marks", () => {
  expect(new Announcer().finish(CODE_ANSWER)).toBe(CODE_HEARD);
});

test("it hears the same when the answer grows, in whatever pieces it comes", () => {
  for (const step of [1, 2, 3, 7, 19, 60]) {
    const announcer = new Announcer();
    const heard: string[] = [];
    for (let end = step; end < CODE_ANSWER.length; end += step) {
      heard.push(announcer.grow(CODE_ANSWER.slice(0, end)));
    }
    expect(heard.filter((each) => each !== "").length).toBeGreaterThan(3);
    heard.push(announcer.finish(CODE_ANSWER));
    expect(heard.filter((each) => each !== "").join(" "), `in pieces of ${step}`).toBe(CODE_HEARD);
  }
});

test("code that has not ended is heard in whole lines", () => {
  const announcer = new Announcer();
  const text = `~~~\n${"a_line()\n".repeat(50)}a_half`;
  const heard = announcer.grow(text);
  expect(heard.startsWith("Code: a_line() a_line()")).toBe(true);
  expect(heard.endsWith("a_line()")).toBe(true);
  expect(announcer.finish(text)).toBe("a_half");
});

describe("a number's field", () => {
  const fieldOf = (name: string) => {
    const found = NUMBER_FIELDS.find((field) => field.name === name);
    if (found === undefined) throw new Error(`no field ${name}`);
    return found;
  };

  test("takes what the server takes, and nothing for its default", () => {
    for (const [name, text, value] of [
      ["temperature", " 0.7 ", 0.7],
      ["temperature", "", null],
      ["presence_penalty", "−1.5", -1.5],
      ["top_p", "1", 1],
      ["seed", "9007199254740991", Number.MAX_SAFE_INTEGER],
      ["max_output_tokens", "2e3", 2000],
    ] as const) {
      expect(parseNumber(fieldOf(name), text)).toEqual({ value, problem: null });
    }
  });

  test("says what would be right", () => {
    for (const [name, text, problem] of [
      ["temperature", "abc", "This must be a number from 0 to 5, or empty."],
      ["temperature", "NaN", "This must be a number from 0 to 5, or empty."],
      ["temperature", "Infinity", "This must be a number from 0 to 5, or empty."],
      ["temperature", "0x1", "This must be a number from 0 to 5, or empty."],
      ["top_p", "0", "This must be a number above 0, up to 1, or empty."],
      ["repetition_penalty", "0", "This must be a number above 0, or empty."],
      ["presence_penalty", "3", "This must be a number from −2 to 2, or empty."],
      ["top_k", "1.5", "This must be a whole number, 0 or more, or empty."],
      ["seed", "9007199254740993", "This must be a whole number, 0 or more, or empty."],
      ["num_speculative_tokens", "17", "This must be a whole number from 0 to 16, or empty."],
    ] as const) {
      expect(parseNumber(fieldOf(name), text)).toEqual({ value: null, problem });
    }
  });

  test("shows its value again", () => {
    expect([null, 0, 0.7, -2].map(writeNumber)).toEqual(["", "0", "0.7", "-2"]);
  });
});

test("errors are sentences, with what helps", () => {
  expect(errorInWords("context_length_exceeded", "the prompt has 5000 tokens")).toBe(
    "The prompt has 5000 tokens. Shorten the message, or begin a new conversation.",
  );
  expect(errorInWords("invalid_value", "top_k is -1; it must be 0 or more")).toBe(
    "top_k is -1; it must be 0 or more.",
  );
  expect(errorInWords(null, "input[2].role is wrong.")).toBe("input[2].role is wrong.");
});

test("text without sentences is heard in pieces", () => {
  const announcer = new Announcer();
  expect(announcer.grow("word ".repeat(90)).length).toBeGreaterThan(400);
});
