"""Facts out of a text, as an object of a given type, by the official client's `parse`.

Needs a package that Paceline does not bring: pip install openai

python structured_extraction.py [http://127.0.0.1:8765]
"""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from openai import AsyncOpenAI
from pydantic import BaseModel, Field

TEXT = "Anna and Ben meet on Friday in Bern to ride their bicycles around the lake."


class Meeting(BaseModel):
    place: str = Field(max_length=20)
    day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    people: list[str] = Field(max_length=3)


async def main(address: str) -> None:
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="not needed") as client:
        model = (await client.models.list()).data[0].id
        answer = await client.chat.completions.parse(
            model=model,
            messages=[{"role": "user", "content": f"Extract the meeting as JSON: {TEXT}"}],
            response_format=Meeting,
            temperature=0,
            max_tokens=200,
        )
        meeting = answer.choices[0].message.parsed
        print(meeting)
        if answer.usage is not None and answer.usage.completion_tokens_details is not None:
            accepted = answer.usage.completion_tokens_details.accepted_prediction_tokens
            print(f"{accepted} of {answer.usage.completion_tokens} tokens were drafted")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8765"))
