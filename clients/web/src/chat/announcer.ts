/** Cuts a growing answer into the sentences that a screen reader is told, each once and whole. */

const SENTENCE_END = /[.!?:;](?=\s)|\n\n/g;
/** Code and tables without sentences are told in pieces of this length. */
const LONGEST = 400;

export class Announcer {
  private told = 0;

  /** What can be said now and has not been; empty while no sentence is whole. */
  grow(text: string): string {
    const fresh = text.slice(this.told);
    let end = 0;
    for (const match of fresh.matchAll(SENTENCE_END)) end = match.index + match[0].length;
    if (end === 0 && fresh.length > LONGEST) end = fresh.lastIndexOf(" ") + 1 || fresh.length;
    return this.take(fresh.slice(0, end));
  }

  /** The rest. */
  finish(text: string): string {
    return this.take(text.slice(this.told));
  }

  private take(piece: string): string {
    this.told += piece.length;
    return piece.replace(/[*_`#>|]+/g, "").replace(/\s+/g, " ").trim();
  }
}
