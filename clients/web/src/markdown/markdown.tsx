/** Shows markdown that may still be growing. */
import { memo } from "preact/compat";
import { useMemo } from "preact/hooks";
import { type Block, blocksOf, renderBlock } from "./render";

export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => blocksOf(text), [text]);
  return (
    <div class="markdown" onClick={copyFromClick}>
      {blocks.map((block, index) => (
        <RenderedBlock key={index} block={block} />
      ))}
    </div>
  );
}

const RenderedBlock = memo(
  function RenderedBlock({ block }: { block: Block }) {
    const html = useMemo(() => renderBlock(block), [block.raw]);
    // eslint-disable-next-line -- sanitised by renderBlock
    return <div class="block" dangerouslySetInnerHTML={{ __html: html }} />;
  },
  (before, after) => before.block.raw === after.block.raw,
);

function copyFromClick(event: MouseEvent): void {
  const button = (event.target as Element).closest<HTMLButtonElement>("button[data-copy]");
  const code = button?.closest(".code")?.querySelector("code")?.textContent;
  if (!button || code == null) return;
  void copyText(code.replace(/\n$/, "")).then((isCopied) => {
    button.textContent = isCopied ? "Copied" : "Copy failed";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
}

/** Also on pages that are not secure, where the clipboard's own interface is missing. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "offscreen";
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}
