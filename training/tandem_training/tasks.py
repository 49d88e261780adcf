"""Prompts such as people send to a model that writes code: tasks.txt has subjects, this file the sentences around them. For training drafts
where no prompts of one's own are at hand.

    training/tasks FILE.jsonl
"""
import hashlib
import json
import os
import sys

SUBJECTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tasks.txt")


def subjects():
    """The lists of tasks.txt, by their headings."""
    lists, now = {}, None
    with open(SUBJECTS) as f:
        for line in f.read().splitlines():
            if line.startswith("# "):
                now = lists.setdefault(line[2:], [])
            elif line:
                now.append(line)
    return lists


def prompts():
    """All prompts, each once, in an order that mixes their kinds."""
    s = subjects()
    p = programs(s) + knowledge(s) + people(s["people"]) + tests(s["tested"]) + edits(s)
    return sorted(set(p), key=lambda x: hashlib.sha256(x.encode()).hexdigest())


def programs(s):
    p = []
    for language in s["languages"]:
        p += [f"Write a {language} function that {f}." for f in s["functions"]]
        p += [f"Implement {t} in {language}, with a short example of its use." for t in s["types"]]
        if language != "Bash":
            p += [f"Write {x} in {language}. Include error handling." for x in s["programs"]]
    for t in s["tables"]:
        p += [f"Write SQL for {t}: create the tables, insert some rows, and query {q}." for q in s["queries"]]
    return p


def knowledge(s):
    p = []
    for t in s["topics"]:
        short = f"In short: {t}?" if t.startswith(("what", "how")) else f"In short, {t}?"
        p += [f"Explain {t}.", f"Explain {t} to a beginner, with an example.", short,
              f"Explain step by step {t}, and give the most common mistakes."]
    for x in s["stories"]:
        p += [f"Tell a short story about {x}.", f"Write a poem about {x}."]
    return p + [f"Write {x}." for x in s["documents"]]


def people(lines):
    p, all_ = [], [line.split(" | ") for line in lines]
    for i, (name, age, city, job, skills) in enumerate(all_):
        for name2, age2, city2, job2, skills2 in all_[i + 1:]:
            p.append(f"Extract JSON with the fields name, age, city, job and skills (list) from this text: {name}, {age}, lives in {city} "
                     f"and works as a {job}; skills are {skills}. {name2} ({age2}) from {city2} is a {job2} who knows {skills2}.")
        before = ", ".join(all_[i - 1][:4])
        p += [f"Write a JSON object for {name}, aged {age}, {job} in {city}, with invented but plausible address, phone and email.",
              f"Turn this into a Markdown table: {name}, {age}, {city}, {job}; {before}."]
    return p


def tests(functions):
    p = []
    for f in functions:
        p += [f"Write pytest tests for a function {f}.", f"Write the Python function {f} and unit tests for it.",
              f"Write table driven tests in Go for a function like {f}."]
    return p


def edits(s):
    p = []
    for language, code, names in map(json.loads, s["code"]):
        for edit in s["edits"]:
            p += [edit.format(v=v) + f"\n\n```{language}\n{code}\n```" for v in (names if "{v}" in edit else [""])]
    return p


def main():
    if len(sys.argv) != 2:
        sys.exit("training: want training/tasks FILE.jsonl, the file to write")
    with open(sys.argv[1], "w") as f:
        for x in prompts():
            f.write(json.dumps({"prompt": x}) + "\n")


if __name__ == "__main__":
    main()
