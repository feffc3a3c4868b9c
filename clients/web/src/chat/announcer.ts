/**
 * Cuts a growing answer into the sentences that a screen reader is told, each once and whole, and
 * reads markdown as it is shown: marks that the page turns into looks are left out, everything else
 * is said as it stands, and code is named as code.
 */
import { type Token, Lexer } from "marked";

/** Not the dot of a numbered item. */
const SENTENCE_END = /(?<!^\s*\d{1,9})[.!?:;](?=\s)|\n[^\S\n]*\n/gm;
const FENCE_START = /^[^\S\n]*(`{3,}|~{3,})([^`\n]*)\n/m;
/** The last line may yet become the start of a fence. */
const FENCE_BEGUN = /(?:^|\n)[^\S\n]*(?:`{1,2}|`{3,}[^`\n]*|~{1,2}|~{3,}[^\n]*)$/;
/** Text without sentences, and code, are told in pieces of about this length. */
const LONGEST = 400;

/** A piece of an answer: how much of it was used, and what is said of that. */
interface Piece {
  readonly length: number;
  readonly said: string;
}

export class Announcer {
  private told = 0;
  /** What ends the code that is being told; null outside of code. */
  private fence: string | null = null;

  /** What can be said now and has not been; empty while no sentence is whole. */
  grow(text: string): string {
    return this.say(text, false);
  }

  /** The rest. */
  finish(text: string): string {
    return this.say(text, true);
  }

  private say(text: string, isWhole: boolean): string {
    const said: string[] = [];
    while (this.told < text.length) {
      const isLineStart = this.told === 0 || text[this.told - 1] === "\n";
      const fresh = text.slice(this.told);
      const piece =
        this.fence === null
          ? this.prose(fresh, isLineStart, isWhole)
          : this.code(fresh, this.fence, isWhole);
      if (piece === null) break;
      this.told += piece.length;
      if (piece.said !== "") said.push(piece.said);
    }
    return said.join(" ");
  }

  private prose(fresh: string, isLineStart: boolean, isWhole: boolean): Piece | null {
    const start = FENCE_START.exec(isWhole ? `${fresh}\n` : fresh);
    if (start?.index === 0 && isLineStart) {
      const [line, fence = "", info = ""] = start;
      this.fence = fence;
      const language = info.trim().split(/\s/, 1)[0] ?? "";
      return { length: line.length, said: language === "" ? "Code:" : `Code, ${language}:` };
    }
    if (start !== null && start.index > 0) {
      return { length: start.index, said: aloud(fresh.slice(0, start.index), isLineStart) };
    }
    const end = isWhole ? fresh.length : endOfProse(fresh);
    return end === 0 ? null : { length: end, said: aloud(fresh.slice(0, end), isLineStart) };
  }

  private code(fresh: string, fence: string, isWhole: boolean): Piece | null {
    const text = isWhole ? `${fresh}\n` : fresh;
    const end = new RegExp(`^[^\\S\\n]*${fence[0]}{${fence.length},}[^\\S\\n]*\\n`, "m").exec(text);
    if (end !== null) {
      this.fence = null;
      const said = `${inOneLine(text.slice(0, end.index))} End of code.`.trim();
      return { length: end.index + end[0].length, said };
    }
    const lines = isWhole ? fresh.length : fresh.lastIndexOf("\n") + 1;
    if (lines === 0 || (!isWhole && lines < LONGEST)) return null;
    return { length: lines, said: inOneLine(fresh.slice(0, lines)) };
  }
}

/** Where the last whole sentence ends; 0 while there is none. */
function endOfProse(fresh: string): number {
  const begun = FENCE_BEGUN.exec(fresh);
  const text = begun === null ? fresh : fresh.slice(0, begun.index + 1);
  let end = 0;
  for (const match of text.matchAll(SENTENCE_END)) {
    const after = match.index + match[0].length;
    if (match[0].startsWith("\n") || isClosed(text.slice(end, after))) end = after;
  }
  if (end > 0 || text.length <= LONGEST) return end;
  return text.lastIndexOf("\n") + 1 || text.lastIndexOf(" ") + 1 || text.length;
}

/** Whether no mark is open at the end, and no row of a table is cut. */
function isClosed(piece: string): boolean {
  const isOpen = (mark: RegExp): boolean => (piece.match(mark)?.length ?? 0) % 2 === 1;
  const lastLine = piece.slice(piece.lastIndexOf("\n") + 1);
  return !isOpen(/`+/g) && !isOpen(/\*\*|__/g) && !/^\s*\|/.test(lastLine);
}

/** Prose as it is shown. isLineStart: its first line is a whole one. */
function aloud(markdown: string, isLineStart: boolean): string {
  const lines = markdown
    .split("\n")
    .map((line, index) => (index > 0 || isLineStart ? lineAloud(line) : line));
  return inOneLine(textOf(Lexer.lexInline(lines.join("\n"))));
}

/** A line without the marks that make it a heading, an item, a quotation or a row. */
function lineAloud(line: string): string {
  const row = /^\s*\|(.*)\|\s*$/.exec(line)?.[1];
  if (row !== undefined) {
    if (/^[\s|:-]*$/.test(row)) return "";
    return `${row
      .split(/(?<!\\)\|/)
      .map((cell) => cell.trim())
      .join(", ")}.`;
  }
  if (/^\s*(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/.test(line)) return "";
  return line.replace(/^\s*(?:>\s*)*/, "").replace(/^(?:#{1,6}|[-*+])\s+/, "");
}

function textOf(tokens: readonly Token[]): string {
  return tokens
    .map((token): string => {
      if (token.type === "br") return " ";
      if (token.type === "image") return String(token.text || token.href);
      if ("tokens" in token && token.tokens) return textOf(token.tokens);
      return "text" in token ? String(token.text) : token.raw;
    })
    .join("");
}

function inOneLine(text: string): string {
  return text.replace(/\s+/g, " ").trim();
}
