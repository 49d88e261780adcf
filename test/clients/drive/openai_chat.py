import json
import openai
from openai import OpenAI
from common import *

client = OpenAI(base_url=V1, api_key=KEY, max_retries=0)
tools = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": SCHEMA}}]


def loop(turn):
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": ASK}]
    for _ in range(5):
        message = turn(messages)
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for c in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": c.id, "content": read_file(**json.loads(c.function.arguments))})


def whole(messages):
    return client.chat.completions.create(model=MODEL, messages=messages, tools=tools, parallel_tool_calls=False).choices[0].message


def streamed(messages):
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools, stream_options={"include_usage": True}) as s:
        for _ in s:
            pass
        answer = s.get_final_completion()
    assert answer.usage.completion_tokens > 0, answer
    return answer.choices[0].message


check("chat", lambda: loop(whole))
check("chat streamed", lambda: loop(streamed))


def responses(streamed):
    tools = [{"type": "function", "name": "read_file", "description": "Reads a file.", "strict": False, "parameters": SCHEMA}]
    items = [{"role": "user", "content": [{"type": "input_text", "text": ASK}]}]
    for _ in range(5):
        ask = dict(model=MODEL, instructions="Be brief.", input=items, tools=tools, store=False)
        if streamed:
            with client.responses.stream(**ask) as s:
                for _ in s:
                    pass
                answer = s.get_final_response()
        else:
            answer = client.responses.create(**ask)
        calls = [i for i in answer.output if i.type == "function_call"]
        if not calls:
            return answer.output_text
        items += [i.model_dump(exclude_none=True) for i in answer.output]
        for c in calls:
            items.append({"type": "function_call_output", "call_id": c.call_id, "output": read_file(**json.loads(c.arguments))})


check("responses", lambda: responses(False))
check("responses streamed", lambda: responses(True))
assert MODEL in [m.id for m in client.models.list()]
try:
    client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    failed.append("previous_response_id")
except openai.BadRequestError as e:
    print("previous_response_id:", e.message)
done()
