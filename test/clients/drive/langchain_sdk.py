from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from common import *

read = tool(read_file)


def loop(turn):
    messages = [HumanMessage(ASK)]
    for _ in range(5):
        answer = turn(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return answer.text
        messages += [read.invoke(c) for c in answer.tool_calls]


def streamed(model):
    def turn(messages):
        whole = None
        for piece in model.stream(messages):
            whole = piece if whole is None else whole + piece
        return whole
    return turn


for kind in (False, True):
    name = "responses" if kind else "chat"
    model = ChatOpenAI(model=MODEL, base_url=V1, api_key=KEY, use_responses_api=kind, max_retries=0).bind_tools([read], tool_choice="auto")
    check(name, lambda: loop(model.invoke))
    check(name + " streamed", lambda: loop(streamed(model)))
done()
