import { describe, expect, test } from "vitest";
import { Announcer } from "../../src/chat/announcer";
import { countSources, gainOf, measuresOf, milliseconds, whyOf } from "../../src/chat/measures";
import { SERVER_DEFAULTS, newConversation, newMessage, titleFrom } from "../../src/chat/records";
import { requestFor } from "../../src/chat/request";
import { itemsOf, newestLeafUnder, pathTo, variantsOf } from "../../src/chat/tree";
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

  test("leaves out answers without text", () => {
    expect(itemsOf([root, { ...one, text: "" }])).toEqual([
      { type: "message", role: "user", content: "q" },
    ]);
  });
});

describe("the request", () => {
  const path = [newMessage("c", null, "user", 1, "hello")];

  test("leaves to the server what is not set", () => {
    expect(requestFor(newConversation(0), path, null)).toEqual({
      type: "response.create",
      input: [{ type: "message", role: "user", content: "hello" }],
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
    expect(whyOf({ ...SUMMARY, gate: "off", reason })).toEqual({
      cause: "Speculation off: too little was accepted, a probe is due",
      evidence: "In this conversation of late: acceptance 0.31 over the last 64 tested.",
    });
    expect(whyOf({ ...SUMMARY, reason: "on: 3 tokens, as the request asked" })).toEqual({
      cause: "Speculation on: 3 tokens, as the request asked",
      evidence: null,
    });
    expect(whyOf({ ...SUMMARY, reason: "" })).toBeNull();
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

test("text without sentences is heard in pieces", () => {
  const announcer = new Announcer();
  expect(announcer.grow("word ".repeat(90)).length).toBeGreaterThan(400);
});
