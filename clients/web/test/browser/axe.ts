/** axe-core in a page that lets no foreign script in: it is evaluated, not loaded. */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { AxeResults } from "axe-core";
import type { Page } from "playwright-core";

const SOURCE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];

export default class AxeBuilder {
  constructor(private readonly page: Page) {}

  async analyze(): Promise<string[]> {
    await this.page.evaluate(SOURCE);
    const results = await this.page.evaluate(
      (tags) =>
        (window as unknown as { axe: { run(o: object): Promise<AxeResults> } }).axe.run({
          runOnly: tags,
        }),
      TAGS,
    );
    return results.violations.flatMap((violation) =>
      violation.nodes.map((node) => `${violation.id}: ${node.html} ${node.failureSummary ?? ""}`),
    );
  }
}
