"""Asks for an answer of a form with each library's own way, once. Any model does: the form is forced."""
import asyncio
import os
import subprocess
import sys
import traceback

import ollama
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from anthropic import Anthropic
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent as Pydantic, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from common import *

set_tracing_disabled(True)
QUESTION = "Ada Lovelace was born in London in 1815. Who is she, as data?"


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=40)
    born: int = Field(ge=0, le=2100)
    city: str | None = Field(max_length=40)


def form(name, ask):
    """Asks, and checks that a Person comes back."""
    try:
        got = ask()
        ok = isinstance(got, Person)
    except Exception:
        traceback.print_exc()
        got, ok = "an exception", False
    print(name + ":", got)
    if not ok:
        failed.append(name)


client, turns = OpenAI(base_url=V1, api_key=KEY, max_retries=0), [{"role": "user", "content": QUESTION}]
form("openai chat", lambda: client.chat.completions.parse(model=MODEL, messages=turns, response_format=Person).choices[0].message.parsed)
form("openai responses", lambda: client.responses.parse(model=MODEL, input=QUESTION, text_format=Person).output_parsed)

anthropic = Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
form("anthropic", lambda: anthropic.messages.parse(model=MODEL, max_tokens=200, messages=turns, output_format=Person).parsed_output)

form("ollama", lambda: Person.model_validate_json(
    ollama.Client(host=BASE).chat(model=MODEL, messages=turns, format=Person.model_json_schema()).message.content))

for kind in ("json_schema", "function_calling"):
    model = ChatOpenAI(model=MODEL, base_url=V1, api_key=KEY, max_retries=0).with_structured_output(Person, method=kind)
    form("langchain " + kind, lambda: model.invoke(QUESTION))

local = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=V1, api_key=KEY))
for kind in (NativeOutput, ToolOutput):
    form("pydantic-ai " + kind.__name__, lambda: Pydantic(local, output_type=kind(Person)).run_sync(QUESTION).output)


async def agent(kind):
    async with AsyncOpenAI(base_url=V1, api_key=KEY, max_retries=0) as own:
        of = Agent(name="a", model=kind(MODEL, own), output_type=Person, model_settings=ModelSettings(max_tokens=200))
        return (await Runner.run(of, QUESTION)).final_output


for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
    form("openai-agents " + kind.__name__, lambda: asyncio.run(agent(kind)))


def llm():
    os.makedirs("llm", exist_ok=True)
    with open("llm/extra-openai-models.yaml", "w") as f:
        f.write(f"- model_id: local\n  model_name: {MODEL}\n  api_base: {V1}\n  supports_schema: true\n")
    env = os.environ | {"LLM_USER_PATH": os.path.abspath("llm"), "OPENAI_API_KEY": KEY}
    program = os.path.join(os.path.dirname(sys.executable), "llm")
    schema = '{"type":"object","properties":{"name":{"type":"string","maxLength":40},"born":{"type":"integer","minimum":0,"maximum":2100},' \
             '"city":{"type":["string","null"],"maxLength":40}},"required":["name","born","city"],"additionalProperties":false}'
    out = subprocess.run([program, "-m", "local", "--schema", schema, QUESTION], env=env, capture_output=True, text=True, timeout=120)
    return Person.model_validate_json(out.stdout) if out.returncode == 0 else out.stderr


form("llm --schema", llm)
done()
