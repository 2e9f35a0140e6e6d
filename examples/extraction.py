"""Extraction: the fields of a text as an object of a Pydantic class, through the openai client.

    pip install '.[server]' openai
    python examples/extraction.py [--model MODEL.gguf]
    python examples/extraction.py --base-url http://127.0.0.1:8080/v1

A grammar made of the class holds the answer to it, whatever the model. How good the values are depends on the model.
"""

from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, Field
from served import read_arguments, served

TEXT = "Dear Sir or Madam, two of the six glasses of order 40817 arrived broken. Please send new ones. Ada King"


class Complaint(BaseModel):
    """What a letter says. Each text has a bound, so that no answer runs into max_tokens."""

    customer: str = Field(max_length=40)
    order: int = Field(ge=0, le=99_999)
    reason: Literal["damaged", "late", "wrong article", "other"]
    wants: Literal["replacement", "refund", "answer"]


def main() -> None:
    with served(read_arguments(__doc__)) as url:
        client = OpenAI(base_url=url, api_key="none")
        answer = client.chat.completions.parse(
            model="any",
            messages=[{"role": "user", "content": f"Extract the complaint as JSON.\n\n{TEXT}"}],
            response_format=Complaint,
            max_tokens=400,
            temperature=0,
        )
        complaint = answer.choices[0].message.parsed
        assert complaint is not None
        print(complaint.model_dump_json(indent=2))


if __name__ == "__main__":
    main()
