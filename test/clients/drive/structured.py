"""The structured modes of a library: structured.py NAME. Whatever the model is, each answer is of the form that the library asked for, and
the library makes its own type of it. Streamed modes must show parts, however few: a pass commits many tokens of a form at once."""
import asyncio
import inspect
import json
import os
import subprocess
import sys
import traceback
from typing import Literal, Optional

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

BASE, MODEL = os.environ["BASE"], os.environ["MODEL"]
V1, KEY = BASE + "/v1", "any"
ONE = {"parallel_tool_calls": False}  # else a model without sense may call again and again
REAL = "REAL" in os.environ  # a model that ends a text that its form does not bound, and writes what an object alone must be
ASK = "Ada Lovelace was born in London in 1815. She wrote about mathematics and poetry. Fill in the form."
ROLE = [{"role": "user", "content": ASK}]
failed = []


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=16)


class Town(BaseModel):  # for modes that force any object: a small model writes one, where it repeats a schema that says more
    city: str


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=24)
    born: int = Field(ge=0, le=2100)
    role: Literal["writer", "ruler", "other"]
    tags: list[Literal["mathematics", "poetry", "war"]] = Field(max_length=2)
    home: Optional[Place]


SCHEMA = Person.model_json_schema()


def case(name, ask, kind=Person, bounded=True):
    """Runs one mode. ask returns the answer, or yields its parts, of which the last is the answer. It is of that kind, or the kind can be
    made of it."""
    if not bounded and not REAL:
        return
    try:
        got = ask()
        if inspect.iscoroutine(got):
            got = asyncio.run(got)
        if not isinstance(got, (BaseModel, str, dict)):
            parts = list(got)
            got = parts[-1]
        if not isinstance(got, kind):
            got = TypeAdapter(kind).validate_json(got) if isinstance(got, str) else kind.model_validate(got)
        print(name + ":", got)
    except Exception:
        traceback.print_exc()
        failed.append(name)


def openai():
    from openai import OpenAI, pydantic_function_tool
    c = OpenAI(base_url=V1, api_key=KEY, max_retries=0)
    tools = [pydantic_function_tool(k, description="Fills in the form.") for k in (Place, Person)]
    flat = [{"type": "function", **t["function"]} for t in tools]
    chat = dict(model=MODEL, messages=ROLE)

    def streamed():
        with c.chat.completions.stream(**chat, response_format=Person) as s:
            assert [e.parsed for e in s if e.type == "content.delta" and e.parsed]
            return s.get_final_completion().choices[0].message.parsed

    def called(choice, tools):
        calls = c.chat.completions.parse(**chat, tools=tools, tool_choice=choice, **ONE).choices[0].message.tool_calls
        return calls[0].function.parsed_arguments

    def called_streamed():
        with c.chat.completions.stream(**chat, tools=tools[1:], tool_choice="required", **ONE) as s:
            assert [e.parsed_arguments for e in s if e.type == "tool_calls.function.arguments.delta"]
            return s.get_final_completion().choices[0].message.tool_calls[0].function.parsed_arguments

    def response(choice):
        answer = c.responses.parse(model=MODEL, input=ASK, tools=flat[1:], tool_choice=choice, **ONE)
        return next(i for i in answer.output if i.type == "function_call").parsed_arguments

    def response_streamed():
        with c.responses.stream(model=MODEL, input=ASK, text_format=Person) as s:
            assert [e.delta for e in s if e.type == "response.output_text.delta"]
            return s.get_final_response().output_parsed
    case("parse", lambda: c.chat.completions.parse(**chat, response_format=Person).choices[0].message.parsed)
    case("parse streamed", streamed)
    case("tool required", lambda: called("required", tools[1:]))
    case("tool required streamed", called_streamed)
    for kind in (Place, Person):
        case("tool named " + kind.__name__, lambda: called({"type": "function", "function": {"name": kind.__name__}}, tools), kind)
    case("responses.parse", lambda: c.responses.parse(model=MODEL, input=ASK, text_format=Person).output_parsed)
    case("responses streamed", response_streamed)
    case("responses, tool required", lambda: response("required"))
    case("responses, tool named", lambda: response({"type": "function", "name": "Person"}))
    case("json_object", lambda: c.chat.completions.create(**chat, response_format={"type": "json_object"}).choices[0].message.content,
         dict, False)


def anthropic():
    from anthropic import Anthropic
    c = Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
    ask = dict(model=MODEL, max_tokens=300, messages=ROLE)
    tools = [{"name": k.__name__, "description": "Fills in the form.", "input_schema": k.model_json_schema(), "strict": True}
             for k in (Place, Person)]

    def streamed():
        with c.messages.stream(**ask, output_format=Place) as s:
            assert list(s.text_stream)
            return s.get_final_message().parsed_output

    def called(choice, tools):
        answer = c.messages.create(**ask, tools=tools, tool_choice=choice | {"disable_parallel_tool_use": True})
        return next(b for b in answer.content if b.type == "tool_use").input
    # The schemas of its own types leave bounds out.
    case("parse", lambda: c.messages.parse(**ask, output_format=Place).parsed_output, Place, False)
    case("parse streamed", streamed, Place, False)
    case("tool any", lambda: called({"type": "any"}, tools[1:]))
    case("tool named Place", lambda: called({"type": "tool", "name": "Place"}, tools), Place)


def pydantic_ai():
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=V1, api_key=KEY)

    async def streamed(agent):
        async with agent.run_stream(ASK) as r:
            return [p async for p in r.stream_output(debounce_by=None)]
    for name, model in (("chat", OpenAIChatModel), ("responses", OpenAIResponsesModel)):
        for kind in (ToolOutput, NativeOutput):
            agent = Agent(model(MODEL, provider=provider), output_type=kind(Person), retries=0,
                          model_settings=ONE if kind is ToolOutput else {})
            case(f"{name}, {kind.__name__}", lambda: agent.run_sync(ASK).output)
            case(f"{name}, {kind.__name__} streamed", lambda: streamed(agent))
        agent = Agent(model(MODEL, provider=provider), output_type=PromptedOutput(Town), retries=0, model_settings={"temperature": 0})
        case(name + ", PromptedOutput", lambda: agent.run_sync(ASK).output, Town, False)


def openai_agents():
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI
    set_tracing_disabled(True)

    async def whole(model):
        async with AsyncOpenAI(base_url=V1, api_key=KEY, max_retries=0) as c:
            return (await Runner.run(Agent(name="a", model=model(MODEL, c), output_type=Person), ASK)).final_output

    async def streamed(model):
        async with AsyncOpenAI(base_url=V1, api_key=KEY, max_retries=0) as c:
            run = Runner.run_streamed(Agent(name="a", model=model(MODEL, c), output_type=Person), ASK)
            assert [e async for e in run.stream_events()]
            return run.final_output
    for name, model in (("chat", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
        case(name, lambda: whole(model))
        case(name + " streamed", lambda: streamed(model))


def langchain():
    from langchain_openai import ChatOpenAI
    for api in (False, True):
        model = ChatOpenAI(model=MODEL, base_url=V1, api_key=KEY, use_responses_api=api, max_retries=0)
        name = "responses" if api else "chat"
        for method, more in (("json_schema", {}), ("function_calling", {}), ("function_calling", {"strict": True})):
            title = f"{name}, {method}{' strict' if more else ''}"
            case(title, lambda: model.with_structured_output(Person, method=method, **more).invoke(ASK))
            case(title + " streamed", lambda: model.with_structured_output(SCHEMA, method=method, **more).stream(ASK))
        for choice in ("any", "required", "Person"):
            bound = model.bind_tools([Person], tool_choice=choice, **ONE)
            case(f"{name}, tool_choice {choice}", lambda: bound.invoke(ASK).tool_calls[0]["args"])


def ollama():
    from ollama import Client
    c = Client(host=BASE)
    case("chat", lambda: c.chat(MODEL, messages=ROLE, format=SCHEMA).message.content)
    case("generate", lambda: c.generate(MODEL, ASK, format=SCHEMA).response)

    def streamed():
        text = ""
        for piece in c.chat(MODEL, messages=ROLE, format=SCHEMA, stream=True):
            text += piece.message.content or ""
            yield text
    case("chat streamed", streamed)


def llm():
    program = os.path.join(os.path.dirname(sys.executable), "llm")

    def say(*a):
        return subprocess.run([program, "-m", "local", *a, ASK], check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              text=True).stdout
    case("--schema", lambda: say("--no-stream", "--schema", json.dumps(SCHEMA)))
    case("--schema streamed", lambda: say("--schema", json.dumps(SCHEMA)))
    case("--schema-multi", lambda: say("--schema-multi", "city: the name of a city"), dict, False)


def instructor():
    from instructor import Mode, from_openai
    from openai import OpenAI
    ask = dict(model=MODEL, messages=ROLE, max_retries=0, temperature=0)
    for mode, kind in ((Mode.TOOLS, Person), (Mode.JSON_SCHEMA, Person), (Mode.JSON, Town)):
        one = ONE if mode is Mode.TOOLS else {}
        c = from_openai(OpenAI(base_url=V1, api_key=KEY, max_retries=0), mode=mode)
        case(mode.name, lambda: c.create(response_model=kind, **ask, **one), kind, kind is Person)
        case(mode.name + " partial", lambda: c.create_partial(response_model=kind, **ask, **one), kind, kind is Person)


globals()[sys.argv[1]]()
if failed:
    sys.exit("failed: " + ", ".join(failed))
