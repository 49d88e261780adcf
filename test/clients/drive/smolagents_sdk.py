from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool
from common import *

model = OpenAIModel(model_id=MODEL, api_base=V1, api_key=KEY)
read = tool(read_file)


def run(kind, **k):
    return kind(tools=[read], model=model, max_steps=3, verbosity_level=0, **k).run(ASK)


check("tools", lambda: run(ToolCallingAgent))
check("tools streamed", lambda: run(ToolCallingAgent, stream_outputs=True))
check("code", lambda: run(CodeAgent))
check("code streamed", lambda: run(CodeAgent, stream_outputs=True))
done()
