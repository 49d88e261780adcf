from anthropic import Anthropic, beta_tool
from common import *

client = Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
tools = [{"name": "read_file", "description": "Reads a file.", "input_schema": SCHEMA}]


def loop(turn):
    messages = [{"role": "user", "content": ASK}]
    for _ in range(5):
        answer = turn(dict(model=MODEL, max_tokens=500, messages=messages, tools=tools,
                           system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]))
        messages.append({"role": "assistant", "content": answer.content})
        calls = [b for b in answer.content if b.type == "tool_use"]
        if not calls:
            assert answer.stop_reason == "end_turn" and answer.usage.output_tokens > 0, answer
            return answer.content[-1].text
        assert answer.stop_reason == "tool_use", answer
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": c.id, "content": read_file(**c.input)} for c in calls]})


def streamed(ask):
    with client.messages.stream(**ask) as s:
        for _ in s:
            pass
        return s.get_final_message()


check("messages", lambda: loop(lambda ask: client.messages.create(**ask)))
check("messages streamed", lambda: loop(streamed))


def runner(stream):
    r = client.beta.messages.tool_runner(model=MODEL, max_tokens=500, messages=[{"role": "user", "content": ASK}],
                                         tools=[beta_tool(read_file)], stream=stream)
    last = None
    for turn in r:
        if stream:
            for _ in turn:
                pass
            turn = turn.get_final_message()
        last = turn
    return last.content[-1].text


check("tool_runner", lambda: runner(False))
check("tool_runner streamed", lambda: runner(True))
assert client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": ASK}], tools=tools).input_tokens > 10
done()
