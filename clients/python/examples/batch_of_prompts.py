"""A file of prompts, one a line, through one request of raw completions.

Needs a package that Paceline does not bring: pip install openai

python batch_of_prompts.py PROMPTS [http://127.0.0.1:8765]
"""

from __future__ import annotations

import sys
from pathlib import Path

from openai import OpenAI

BATCH = 64


def main(path: str, address: str) -> None:
    prompts = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line]
    with OpenAI(base_url=f"{address}/v1", api_key="not needed") as client:
        model = client.models.list().data[0].id
        for start in range(0, len(prompts), BATCH):
            batch = prompts[start : start + BATCH]
            answer = client.completions.create(
                model=model, prompt=batch, max_tokens=32, temperature=0, stop="\n"
            )
            for prompt, choice in zip(batch, answer.choices, strict=True):
                print(f"{prompt}{choice.text}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8765")
