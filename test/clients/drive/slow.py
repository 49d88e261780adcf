"""Reads streams whose prompts take long to read, with the libraries of OpenAI, Anthropic and Ollama."""
import time
import anthropic
import ollama
import openai
from common import *

SAYS, SECONDS, PHRASES = os.environ["SAYS"], int(os.environ["SECONDS"]), int(os.environ["PHRASES"])
o = openai.OpenAI(base_url=V1, api_key=KEY, max_retries=0, timeout=600)
a = anthropic.Anthropic(base_url=BASE, api_key=KEY, max_retries=0, timeout=600)


def chat(text):
    with o.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": text}]) as s:
        yield from (e.delta for e in s if e.type == "content.delta")
        assert s.get_final_completion().choices[0].message.content == SAYS


def chunks(text):
    for c in o.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], stream=True):
        yield c.choices[0].delta.content or ""


def responses(text):
    seen = []
    with o.responses.stream(model=MODEL, input=text, store=False) as s:
        for e in s:
            seen.append((e.type, e.sequence_number))
            if e.type == "response.output_text.delta":
                yield e.delta
        assert s.get_final_response().output_text == SAYS
    assert [n for _, n in seen] == list(range(len(seen))) and seen[0][0] == "response.created", seen


def messages(text):
    with a.messages.stream(model=MODEL, max_tokens=50, messages=[{"role": "user", "content": text}]) as s:
        yield from s.text_stream
        assert s.get_final_message().content[0].text == SAYS


def ollama_chat(text):
    for part in ollama.Client(host=BASE).chat(MODEL, messages=[{"role": "user", "content": text}], stream=True):
        yield part.message.content
    assert part.done


for read in (chat, chunks, responses, messages, ollama_chat):
    # Each prompt begins in its own way, so that none is in the cache.
    text = " ".join(f"{read.__name__} {i} of {PHRASES}." for i in range(PHRASES))
    began, first, said = time.time(), 0, ""
    try:
        for piece in read(text):
            said += piece
            first = first or (said and time.time() - began)
    except Exception:
        traceback.print_exc()
    print(f"{read.__name__}: {first:.1f} s to the first text, {said!r}", flush=True)
    if said != SAYS or first < SECONDS:
        failed.append(read.__name__)
done()
