import asyncio
from pydantic import BaseModel
from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from common import *

provider = OpenAIProvider(base_url=V1, api_key=KEY)


class Out(BaseModel):
    text: str
    words: int


def agent(model, **k):
    a = Agent(model, instructions="You read files.", **k)
    a.tool_plain(read_file)
    return a


async def streamed(model):
    # not run_stream, whose answer is the first text, also one that stands before a call
    async with agent(model).run_stream_events(ASK) as events:
        async for event in events:
            if isinstance(event, AgentRunResultEvent):
                return event.result.output


chat = OpenAIChatModel(MODEL, provider=provider)
check("chat", lambda: agent(chat).run_sync(ASK).output)
check("chat streamed", lambda: asyncio.run(streamed(chat)))
check("chat with a typed output", lambda: agent(chat, output_type=Out).run_sync(ASK).output.text)
check("responses", lambda: agent(OpenAIResponsesModel(MODEL, provider=provider)).run_sync(ASK).output)
check("messages", lambda: agent(AnthropicModel(MODEL, provider=AnthropicProvider(api_key=KEY, base_url=BASE))).run_sync(ASK).output)
done()
