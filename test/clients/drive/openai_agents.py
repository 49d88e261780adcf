import asyncio
import os
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI
from common import *

client = AsyncOpenAI(base_url=V1, api_key=KEY, max_retries=0)


async def streamed(agent):
    run = Runner.run_streamed(agent, ASK)
    async for _ in run.stream_events():
        pass
    return run.final_output


async def whole(agent):
    return (await Runner.run(agent, ASK)).final_output


async def main():
    for name, kind in (("chat", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
        agent = Agent(name="reader", instructions="You read files.", tools=[function_tool(read_file)],
                      model=kind(model=MODEL, openai_client=client))
        for how in (whole, streamed):
            try:
                text = await how(agent)
            except Exception as e:
                text = repr(e)
            os.rename("ran", "seen") if os.path.exists("ran") else None

            def told():
                os.rename("seen", "ran")
                return text
            check(name + " " + how.__name__, told)

asyncio.run(main())
done()
