"""What the drivers of libraries share: the tool, the question, and how an answer is checked."""
import os
import sys
import traceback

BASE, MODEL = os.environ["BASE"], os.environ["MODEL"]
V1 = BASE + "/v1"
KEY = "any"
ASK = "Read the file hello.txt and say what it says."
FINAL = "The file says forty-two."
SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "description": "the file"}}, "required": ["path"]}
failed = []


def read_file(path: str) -> str:
    """Reads a file.

    Args:
        path: the file
    """
    with open("ran", "a") as f:
        f.write(path + "\n")
    with open(path) as f:
        return f.read()


def check(name, conversation):
    """Runs a conversation, which returns its last text, and whose tool must have run."""
    if os.path.exists("ran"):
        os.remove("ran")
    try:
        text = str(conversation())
    except Exception:
        traceback.print_exc()
        text = "an exception"
    ran = os.path.exists("ran")
    print(name + ":", "tool ran," if ran else "tool did not run,", text)
    if FINAL not in text or not ran:
        failed.append(name)


def done():
    """Ends the driver; its last line says what failed."""
    if failed:
        sys.exit("failed: " + ", ".join(failed))
