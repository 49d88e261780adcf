"""Asks for an answer of a form with instructor, by a forced call and by a schema."""
import sys
import traceback

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field
from common import *


class Person(BaseModel):
    name: str = Field(max_length=40)
    born: int = Field(ge=0, le=2100)


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    ask = instructor.from_openai(OpenAI(base_url=V1, api_key=KEY, max_retries=0), mode=mode)
    try:
        print(mode.name + ":", ask.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Ada Lovelace, 1815, as data."}], response_model=Person, max_retries=0))
    except Exception:
        traceback.print_exc()
        failed.append(mode.name)
done()
