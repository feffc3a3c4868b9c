/**
 * Markdown from a model, made into HTML that can do nothing.
 *
 * Two walls: HTML in the text is shown as text, so that every tag is one of ours; and what comes out
 * passes a sanitiser with a short list of tags. Images become links, since loading one would tell a
 * stranger what was said here.
 */
import DOMPurify from "dompurify";
import { Marked, type Token, type Tokens } from "marked";
import { escapeHtml, highlight } from "./highlight";

const ALLOWED_TAGS = [
  "a", "blockquote", "br", "button", "code", "del", "div", "em", "h3", "h4", "h5", "h6", "hr",
  "input", "li", "ol", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr",
  "ul",
]; // prettier-ignore
const ALLOWED_ATTRIBUTES = [
  "align", "checked", "class", "data-copy", "disabled", "href", "rel", "start", "tabindex",
  "target", "title", "type", "aria-label", "role",
]; // prettier-ignore
const ALLOWED_ADDRESS = /^(?:https?:|mailto:)/i;
/** The sanitiser checks every attribute with this: an allowed address, or no address at all. */
const ALLOWED_VALUE = /^(?:(?:https?|mailto):|[^a-z]|[a-z+.-]+(?:[^a-z+.:-]|$))/i;

const marked = new Marked({
  gfm: true,
  breaks: true,
  async: false,
  renderer: {
    html({ text }) {
      return escapeHtml(text);
    },
    heading({ tokens, depth }) {
      // The page has its own first and second level.
      const level = Math.min(6, depth + 2);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>\n`;
    },
    image({ href, text }) {
      return link(href, escapeHtml(text || href));
    },
    link({ href, tokens }) {
      return link(href, this.parser.parseInline(tokens));
    },
    code({ text, lang }) {
      const language = (lang ?? "").trim().split(/\s/, 1)[0] ?? "";
      const label = escapeHtml(language || "text");
      return (
        `<div class="code"><div class="code-head"><span>${label}</span>` +
        `<button type="button" class="copy" data-copy="1">Copy</button></div>` +
        `<pre tabindex="0" role="group" aria-label="Code, ${label}"><code>` +
        `${highlight(text, language.toLowerCase())}\n</code></pre></div>\n`
      );
    },
    table(token: Tokens.Table) {
      const cells = (row: Tokens.TableCell[], tag: "td" | "th"): string =>
        row
          .map((cell) => {
            const align = cell.align ? ` align="${cell.align}"` : "";
            return `<${tag}${align}>${this.parser.parseInline(cell.tokens)}</${tag}>`;
          })
          .join("");
      const rows = token.rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
      return (
        `<div class="table" tabindex="0" role="group" aria-label="Table"><table>` +
        `<thead><tr>${cells(token.header, "th")}</tr></thead><tbody>${rows}</tbody></table></div>\n`
      );
    },
  },
});

function link(href: string, html: string): string {
  if (!ALLOWED_ADDRESS.test(href.trim())) return html;
  return `<a href="${escapeHtml(href)}" target="_blank" rel="noopener noreferrer nofollow">${html}</a>`;
}

/** A top-level piece of a text: what has been rendered once need not be rendered again. */
export interface Block {
  readonly raw: string;
  readonly token: Token;
}

/** The text's top-level blocks, in order. While it grows, only the last ones change. */
export function blocksOf(text: string): Block[] {
  const tokens = marked.lexer(text);
  // Reference links (`[a]: http...`) hold for the whole text; the parser has resolved them by now.
  return tokens.filter((token) => token.type !== "space").map((token) => ({ raw: token.raw, token }));
}

export function renderBlock(block: Block): string {
  return DOMPurify.sanitize(marked.parser([block.token]), {
    ALLOWED_TAGS,
    ALLOWED_ATTR: ALLOWED_ATTRIBUTES,
    ALLOWED_URI_REGEXP: ALLOWED_VALUE,
    ALLOW_DATA_ATTR: false,
  });
}
