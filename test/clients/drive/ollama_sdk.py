import ollama
from common import *

client = ollama.Client(host=BASE)


def loop(turn):
    messages = [{"role": "user", "content": ASK}]
    for _ in range(5):
        message = turn(messages)
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for c in message.tool_calls:
            messages.append({"role": "tool", "tool_name": c.function.name, "content": read_file(**c.function.arguments)})


def streamed(messages):
    text, calls, last = "", [], None
    for last in client.chat(MODEL, messages=messages, tools=[read_file], stream=True, options={"num_ctx": 4096, "temperature": 0}):
        text += last.message.content or ""
        calls += last.message.tool_calls or []
    assert last.done and last.eval_count > 0, last
    return ollama.Message(role="assistant", content=text, tool_calls=calls or None)


check("chat", lambda: loop(lambda m: client.chat(MODEL, messages=m, tools=[read_file], think=False, keep_alive="5m").message))
check("chat streamed", lambda: loop(streamed))
assert MODEL in [m.model for m in client.list().models] and "tools" in client.show(MODEL).capabilities and client.ps().models
assert client.generate(MODEL, "hi", options={"num_predict": 8}).response
done()
