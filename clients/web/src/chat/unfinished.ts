/** Which answers a tab is writing, remembered over a reload of it and gone with it. */

export interface UnfinishedAnswer {
  readonly conversationId: string;
  readonly messageId: string;
}

export interface Unfinished {
  read(): readonly UnfinishedAnswer[];
  write(answers: readonly UnfinishedAnswer[]): void;
}

const KEY = "paceline.unfinished";

/** In the tab's own storage; nowhere where that is switched off. */
export const unfinishedInTab: Unfinished = {
  read() {
    try {
      const stored: unknown = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
      return Array.isArray(stored) ? stored.filter(isAnswer) : [];
    } catch {
      return [];
    }
  },
  write(answers) {
    try {
      if (answers.length === 0) sessionStorage.removeItem(KEY);
      else sessionStorage.setItem(KEY, JSON.stringify(answers));
    } catch {
      /* a reload then leaves them as they are */
    }
  },
};

function isAnswer(value: unknown): value is UnfinishedAnswer {
  const { conversationId, messageId } = (value ?? {}) as Partial<UnfinishedAnswer>;
  return typeof conversationId === "string" && typeof messageId === "string";
}
