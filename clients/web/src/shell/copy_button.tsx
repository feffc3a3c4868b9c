/** Copies a text, and says whether that worked. */
import { useState } from "preact/hooks";
import { copyText } from "../markdown/markdown";
import { IconButton } from "./icons";

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [isCopied, setCopied] = useState(false);
  return (
    <IconButton
      icon={isCopied ? "check" : "copy"}
      label={isCopied ? "Copied" : label}
      onClick={() => {
        void copyText(text).then((worked) => {
          setCopied(worked);
          setTimeout(() => setCopied(false), 1600);
        });
      }}
    />
  );
}
