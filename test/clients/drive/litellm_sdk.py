import json
import litellm
from common import *

tools = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": SCHEMA}}]
litellm.suppress_debug_info = True


def loop(model, base, stream):
    messages = [{"role": "user", "content": ASK}]
    for _ in range(5):
        answer = litellm.completion(model + MODEL, messages=messages, tools=tools, api_base=base, api_key=KEY, num_retries=0, stream=stream)
        if stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for c in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": c.id, "name": c.function.name,
                             "content": read_file(**json.loads(c.function.arguments))})


for prefix, base in (("openai/", V1), ("hosted_vllm/", V1), ("anthropic/", BASE), ("ollama_chat/", BASE)):
    for stream in (False, True):
        check(prefix[:-1] + (" streamed" if stream else ""), lambda: loop(prefix, base, stream))
done()
