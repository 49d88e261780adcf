"""A whole conversation with calls of a tool over gRPC, as a Python program has it: python chat.py ADDRESS.

docs/guides/embed.md says how the code of tandem.v1 is generated. TestPython runs this against a model whose texts are given.
"""
import json
import sys

import grpc
from tandem.v1 import chat_pb2, chat_pb2_grpc, generation_pb2, generation_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1])
chat = chat_pb2_grpc.ChatServiceStub(channel)
schema = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
tools = [chat_pb2.ChatTool(name="weather", description="The weather of a place", parameters=json.dumps(schema))]
results = {"Rome": "21", "Oslo": "3"}


def ask(messages):
    """Returns the assistant's turn and how it ended."""
    turn, end = chat_pb2.ChatMessage(role="assistant"), None
    request = chat_pb2.ChatRequest(messages=messages, tools=tools, sampling=generation_pb2.Sampling(seed=7))
    for number, event in enumerate(chat.Chat(request, timeout=60, metadata=[("x-request-id", "python")])):
        assert event.sequence == number, event
        kind = event.WhichOneof("event")
        if kind == "text":
            turn.content += event.text
        elif kind == "thought":
            turn.thought += event.thought
        elif kind == "call":
            turn.tool_calls.add(id=event.call.id, name=event.call.name)
        elif kind == "arguments":
            turn.tool_calls[event.arguments.index].arguments += event.arguments.json
        elif kind == "finished":
            end = event.finished
    assert end.request_id == "python" and end.sampling.seed == 7, end
    return turn, end


messages = [chat_pb2.ChatMessage(role="user", content="Rome and Oslo?")]
for turns in range(1, 10):
    turn, end = ask(messages)
    messages.append(turn)
    if end.reason != generation_pb2.FINISH_REASON_TOOL_CALLS:
        break
    for call in turn.tool_calls:
        place = json.loads(call.arguments)["place"]
        messages.append(chat_pb2.ChatMessage(role="tool", content=results[place], tool_call_id=call.id, name=call.name))
print(turns, "turns:", turn.content)

try:
    ask([chat_pb2.ChatMessage(role="robot", content="x")])
except grpc.RpcError as e:
    print(e.code().name, e.details())

stream = chat.Chat(chat_pb2.ChatRequest(messages=[chat_pb2.ChatMessage(role="user", content="wait")]))
next(stream)
stream.cancel()
try:
    for _ in stream:
        pass
except grpc.RpcError as e:
    print(e.code().name)

text = generation_pb2_grpc.GenerationServiceStub(channel).Generate(generation_pb2.GenerateRequest(text="tool: 21 tool: 3", written=True))
print("".join(event.delta.text for event in text))
