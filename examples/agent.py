"""An agent with tools, through the openai client: the model calls functions of this program until it answers.

    pip install '.[server]' openai
    python examples/agent.py [--model MODEL.gguf]
    python examples/agent.py --base-url http://127.0.0.1:8080/v1

With `tool_choice="required"`, a grammar holds the first step to a call that is valid for its schema, with any model.
"""

import json
from typing import Any

from openai import OpenAI
from served import read_arguments, served

WEATHER = {"Bergen": "rain, 8 degrees", "Cairo": "sun, 31 degrees", "Lima": "fog, 17 degrees"}
CITY = {"type": "object", "properties": {"city": {"enum": list(WEATHER)}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather in a city.", "parameters": CITY}}
]
MAX_STEPS = 3


def weather(city: str) -> str:
    return WEATHER[city]


def call_tool(name: str, arguments: str) -> str:
    """Run a function for the model. An error becomes its result, so that the model can try again."""
    try:
        return {"weather": weather}[name](**json.loads(arguments))
    except (KeyError, TypeError, ValueError) as error:  # such as arguments that max_tokens cut
        return f"error: {error!r}"


def main() -> None:
    with served(read_arguments(__doc__)) as url:
        client = OpenAI(base_url=url, api_key="none")
        messages: list[Any] = [{"role": "user", "content": "What is the weather in Bergen?"}]
        for step in range(MAX_STEPS):
            choice: Any = "required" if step == 0 else "auto"
            answer = client.chat.completions.create(
                model="any", messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=200, temperature=0
            )
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                print("answer:", message.content)
                break
            for call in message.tool_calls:
                result = call_tool(call.function.name, call.function.arguments)
                print(f"{call.function.name}({call.function.arguments}) -> {result}")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main()
