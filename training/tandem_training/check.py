"""Checks training in less than a minute, on the tiny target of golden.py: the formulas against slow restatements, a few steps of every
kind, which must lower the loss, and that a file reads back as what was written."""
import json
import os
import sys
import tempfile

import numpy as np
import torch

from . import Refused, data, export, gguf, golden, llama, mixture, naive, sides, train

WORDS = "func return error string byte reader writer buffer value index for range if nil len type struct map slice int".split()
KINDS = {
    "medusa": [], "medusa --own-output": ["--heads", "2"], "ppd": ["--members", "2"], "dovetail": ["--init", "random"], "eagle": [],
    "eagle3": ["--draft-vocab", "100"], "distill": ["--dim", "16", "--heads", "2", "--kv-heads", "1", "--ffn", "32"],
}


def formulas(target):
    """Attention of prompt groups and of several steps, against sequences one by one."""
    with torch.no_grad():
        for name, side in golden.tiny_sides(target).items():
            golden.randomise(side, 7)
            if side.arch == "medusa":
                continue
            taps, cells = golden.run(target, golden.TOKENS, side.taps or (-1,))
            if side.arch == "ppd":
                got = side(target, cells, torch.tensor([[2, 9]]))[0]
                want = torch.stack([naive.prompts(side, target, golden.TOKENS, p) for p in (2, 9)])
            else:
                g = golden.of_draft(side, target, golden.TOKENS)
                got, want = torch.tensor(g["states"]), naive.draft(side, target, golden.TOKENS, taps[0], g["fed"])
            far = (got - want).abs().max().item()
            expect(far < 1e-4, f"{name}: differs from the slow computation by {far}")


def against_tandem(logits, path):
    """The float model, by its logits for tokens, against the engine, whose keys and values are f16."""
    ids = golden.TOKENS
    top = json.loads(export.tandem(["logits", "--json", "--model", path, "--tokens", ",".join(map(str, ids)), "--top", "5"]))["prompt_top"]
    with torch.no_grad():
        mine = logits(torch.tensor([ids]))[0]
    far = max(abs(mine[i, int(t)].item() - v) for i, row in enumerate(top) for t, v in row)
    expect(far < 0.02, f"logits differ from tandem's by {far}: want at most 0.02, for keys and values in f16")
    return far


def exclusion(folder):
    """A file that holds a prompt is left out, whatever its line breaks, and the others are not."""
    prompt = "The quick reader writes what it has read, and then it reads what it has written, until nobody knows which came first."
    with open(os.path.join(folder, "prompts.jsonl"), "w") as f:
        f.write('{"prompt": "%s"}\n' % prompt)
    e = data.Exclusion(f.name)
    e.look("with", ("x = 1\n// " + prompt.replace(" ", "\n// ", 3) + "\n").encode())
    e.look("without", b"The quick reader writes nothing at all. " * 9)
    expect(e.left_out() == ({"with"}, {"whole": 1, "part": 0, "none": 0}), f"left out {e.left_out()}: want the file with the prompt")


def quantised():
    """Blocks of known bytes."""
    b = np.zeros(34, np.uint8)
    b[:2] = np.array([0.5], "<f2").view(np.uint8)
    b[2:] = np.arange(-16, 16, dtype=np.int8).view(np.uint8)
    expect((gguf.dequantise(gguf.Q8_0, b) == np.arange(-16, 16) * 0.5).all(), "q8_0 is read wrongly")
    for raw, why in ((b"GGUF", "24 or more"), (b"GGML" + bytes(40), "begins with"), (b"GGUF" + b"\xff" * 60, "version")):
        with tempfile.NamedTemporaryFile() as f:
            f.write(raw)
            f.flush()
            try:
                gguf.File(f.name)
            except Refused as e:
                expect(why in str(e), f"{raw[:8]}: {e}: want {why!r} in it")
            else:
                expect(False, f"{raw[:8]} was read as a GGUF file")


def texts(folder, seed=3):
    """Files of words in an order that can be learned: a word is mostly followed by the next."""
    rng, where = np.random.default_rng(seed), os.path.join(folder, "text")
    os.makedirs(where)
    for i in range(40):
        at, words = 0, []
        for _ in range(300):
            at = (at + (1 if rng.random() < 0.8 else rng.integers(len(WORDS)))) % len(WORDS)
            words.append(WORDS[at])
        with open(os.path.join(where, f"{i}.txt"), "w") as f:
            f.write(" ".join(words))
    return where


def kinds(folder, path):
    where = texts(folder)
    for kind, more in KINDS.items():
        out = os.path.join(folder, kind.replace(" ", "") + ".gguf")
        args = [*kind.split(), "--target", path, "--out", out, "--data", where, "--leave-out", "", "--work", os.path.join(folder, "work"),
                "--length", "48", "--windows", "48", "--held", "16", "--epochs", "4", "--warm", "2", "--no-bar", "--threads", "1",
                "--type", "f32", *more]
        a = train.parser().parse_args(args)
        m = train.run(a)
        before, after = m["before"]["text"]["loss"], m["held"]["text"]["loss"]
        expect(after < before, f"{kind}: held-out loss {before} -> {after}: want it to fall")
        f = gguf.File(out)
        back = llama.load(f) if kind == "distill" else export.read(out, llama.load(gguf.File(path)))
        again = os.path.join(folder, "again.gguf")
        gguf.write(again, f.keys, {k: v.detach().numpy() for k, v in back.state_dict().items()}, gguf.F32)
        expect(open(out, "rb").read() == open(again, "rb").read(), f"{kind}: what was written reads back as something else")


def mixed(folder, path):
    """A mixture of the target learns, with its MTP layer. tandem computes the same with it, and with the larger mixture of the same
    function, as this program."""
    out, large = os.path.join(folder, "mixture.gguf"), os.path.join(folder, "large.gguf")
    args = ["--target", path, "--out", out, "--data", os.path.join(folder, "text"), "--leave-out", "", "--work", os.path.join(folder, "work"),
            "--length", "48", "--windows", "48", "--held", "16", "--epochs", "4", "--warm", "2", "--no-bar", "--threads", "1", "--type", "f32",
            "--experts", "8", "--used", "2", "--width", "16", "--shared", "32"]
    m, before, after = mixture.run(mixture.parser().parse_args(args))
    expect(after["kl"] < before["kl"] and after["chain"][0] > before["chain"][0], f"mixture: {before} -> {after}: want it to learn")
    mixture.enlarge(mixture.parser().parse_args(["--target", out, "--out", large, "--enlarge", "64", "32", "--type", "f32"]))
    for file in (out, large):
        against_tandem(lambda tokens: m.logits(m(tokens)), file)


def resumed(folder, path):
    """A run that starts from a finished one begins where that one ended; a checkpoint of other settings is refused."""
    out = os.path.join(folder, "medusa.gguf")
    args = ["medusa", "--target", path, "--out", os.path.join(folder, "more.gguf"), "--data", os.path.join(folder, "text"),
            "--leave-out", "", "--work", os.path.join(folder, "work"), "--length", "48", "--windows", "48", "--held", "16",
            "--epochs", "1", "--no-bar", "--threads", "1", "--from", out]
    with open(out + ".json") as f:
        ended = json.load(f)["held"]["text"]["loss"]
    begun = train.run(train.parser().parse_args(args))["before"]["text"]["loss"]
    expect(abs(begun - ended) < 1e-3, f"--from: held-out loss {begun} at the start, but {ended} at the end of the run before")
    torch.save({"settings": {"kind": "other"}}, os.path.join(folder, "more.gguf.ckpt"))
    try:
        train.run(train.parser().parse_args(args))
    except Refused as e:
        expect("other settings" in str(e), str(e))
    else:
        expect(False, "a checkpoint of other settings was continued")


def expect(ok, what):
    if not ok:
        sys.exit(f"training/check: {what}")


def main():
    torch.set_num_threads(1)
    target = golden.tiny(16)
    quantised()
    formulas(target)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "target.gguf")
        golden.write_target(path, target)
        far = against_tandem(lambda tokens: target.logits(target(tokens, torch.arange(tokens.shape[1]))[0]), path)
        exclusion(folder)
        kinds(folder, path)
        mixed(folder, path)
        resumed(folder, path)
    print(f"training/check: all kinds learn, read back and agree with slow computations; logits within {far:.4f} of tandem's")


if __name__ == "__main__":
    main()
