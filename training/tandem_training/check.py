"""Checks training in about a minute, on the tiny target of golden.py: the formulas against slow restatements, a few steps of every
kind, which must lower the loss, and that a file reads back as what was written."""
import json
import os
import sys
import tempfile

import numpy as np
import torch

from . import Refused, corpus, data, export, gguf, golden, llama, loop, mixture, mtp, naive, served, sides, train

WORDS = "func return error string byte reader writer buffer value index for range if nil len type struct map slice int".split()
KINDS = {
    "medusa": [], "medusa --own-output": ["--heads", "2", "--draft-vocab", "0"], "ppd": ["--members", "2", "--points", "16"],
    "dovetail": ["--init", "random", "--taps", "2", "-1", "1"], "dovetail --blocks 2": ["--ffn", "40"],
    "eagle": ["--draft-vocab", "100", "--ffn", "40"], "eagle --taps 1 -1": ["--draft-vocab", "0"],
    "eagle3": ["--draft-vocab", "100"], "distill": ["--dim", "16", "--heads", "2", "--kv-heads", "1", "--ffn", "32"],
    "distill --keep 2": ["--from", "TARGET", "--draft-vocab", "100"],
}
COMMON = ["--epochs", "6", "--tokens", "96", "--warm", "2", "--no-bar", "--threads", "1", "--compute", "f32", "--type", "f32"]


def formulas(target):
    """Attention of prompt groups and of several steps, against sequences one by one."""
    with torch.no_grad():
        for name, side in golden.tiny_sides(target).items():
            golden.randomise(side, 7)
            if side.arch == "medusa":
                continue
            taps, cells = golden.run(target, golden.TOKENS, side.reads or (-1,))
            if side.arch == "ppd":
                got = side(target, cells, torch.tensor([[2, 9]]))[0]
                want = torch.stack([naive.prompts(side, target, golden.TOKENS, p) for p in (2, 9)])
            else:
                g = golden.of_draft(side, target, golden.TOKENS)
                got, want = torch.tensor(g["states"]), naive.draft(side, target, golden.TOKENS, taps[0], g["fed"])
            far = (got - want).abs().max().item()
            expect(far < 1e-4, f"{name}: differs from the slow computation by {far}")
        for arch in golden.LAYERS:
            m = golden.tiny_mtp(arch, 7)
            states = m(torch.tensor([golden.TOKENS]))
            g = golden.of_draft(m.mtp, m, golden.TOKENS, taps=states)
            far = (torch.tensor(g["states"]) - naive.draft(m.mtp, m, golden.TOKENS, states[0], g["fed"])).abs().max().item()
            expect(far < 1e-4, f"mtp of {arch}: differs from the slow computation by {far}")


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
        for _ in range(60):
            at = (at + (1 if rng.random() < 0.8 else rng.integers(len(WORDS)))) % len(WORDS)
            words.append(WORDS[at])
        with open(os.path.join(where, f"{i}.txt"), "w") as f:
            f.write(" ".join(words))
    return where


def rounds():
    """Rounds over a text of ten rows: chains of 2, 0, 3 and 1 right guesses, and one that the text's end cuts."""
    right = [2, 9, 9, 0, 3, 9, 9, 9, 1, 9]
    ranks = torch.tensor([[0 if d < n else 1 for d in range(3)] for n in right])
    tally = loop.Tally()
    tally.add(ranks, [10])
    got = tally.report()
    expect(got["score"] == 2.5, f"tokens a round are {got['score']}: want 10 of 4 rounds")
    expect(got["chain"] == 1 + sum(min(n, 3) for n in right) / 10, f"chain is {got['chain']}")


def losses():
    """kl_top against the formula written out, and its gradient against differences."""
    g = torch.Generator().manual_seed(5)
    z = torch.randn(4, 6, generator=g, dtype=torch.float64, requires_grad=True)
    numbers = torch.tensor([[2, 0, -1], [5, 1, 3], [-1, 0, 1], [4, -1, -1]])
    p = torch.tensor([[0.6, 0.2, 0.1], [0.5, 0.25, 0.125], [0.9, 0.05, 0.01], [0.4, 0.3, 0.2]], dtype=torch.float64)
    got, total, rows = loop.kl_top(z, numbers, p.log()), 0.0, 0
    for r in range(4):
        if numbers[r, 0] < 0:
            continue
        own = [i for i in range(3) if numbers[r, i] >= 0]
        q, whole = z[r].softmax(0), sum(p[r, i] for i in own)
        total, rows = total + sum(p[r, i] / whole * (p[r, i] / whole / q[numbers[r, i]]).log() for i in own), rows + 1
    expect(abs(got.item() - total.item() / rows) < 1e-6, f"kl_top is {got.item()}: want {total.item() / rows}")
    mine, = torch.autograd.grad(got, z, retain_graph=True)
    theirs, = torch.autograd.grad(total / rows, z)
    expect((mine - theirs).abs().max() < 1e-6, "the gradient of kl_top is not that of the formula written out")
    hard = loop.kl_top(z, numbers, p.log(), hard=True).item()
    want = -sum(z[r].log_softmax(0)[numbers[r, 0]].item() for r in (0, 1, 3)) / 3
    expect(abs(hard - want) < 1e-6, f"kl_top with the likeliest alone is {hard}: want {want}")


def states_of(folder, path, name="states", taps="1,2,3,-1"):
    """A folder of the target's states over answers of its own, written by tandem."""
    out, prompts = os.path.join(folder, name), os.path.join(folder, "beginnings.jsonl")
    with open(prompts, "w") as f:
        for i in range(200):
            json.dump({"prompt": f"{WORDS[i % len(WORDS)]} {WORDS[i * i % len(WORDS)]} {i}"}, f)
            f.write("\n")
    export.tandem(["model", "states", "--model", path, "--out", out, "--prompts", prompts, "--raw", "--ctx", "48", "--answer-tokens", "32",
                   f"--taps={taps}", "--threads", "1"])
    return out


def kinds(folder, path):
    where = states_of(folder, path)
    for kind, more in KINDS.items():
        out = os.path.join(folder, kind.replace(" ", "") + ".gguf")
        more = [path if m == "TARGET" else m for m in more]
        a = train.parser().parse_args([*kind.split(), "--target", path, "--out", out, "--states", where, *COMMON, *more])
        m = train.run(a)
        before, after = m["curve"][0]["loss"], m["curve"][-1]["loss"]
        expect(after < before, f"{kind}: held-out loss {before} -> {after}: want it to fall")
        expect(m["held"]["score"] >= m["curve"][0]["score"], f"{kind}: tokens a round {m['curve']}: want them to grow")
        back = llama.load(gguf.File(out)) if a.kind == "distill" else export.read(out, llama.load(gguf.File(path)))
        reads_back(folder, out, back)
        if a.kind == "distill":
            against_tandem(lambda tokens: back.logits(back(tokens, torch.arange(tokens.shape[1]))[0]), out)


def reads_back(folder, out, side):
    again = os.path.join(folder, "again.gguf")
    gguf.write(again, gguf.File(out).keys, {k: v.detach().numpy() for k, v in side.state_dict().items()}, gguf.F32)
    expect(open(out, "rb").read() == open(again, "rb").read(), f"{out}: what was written reads back as something else")


def layers(folder):
    """The MTP layer of a target learns. tandem computes the same with such a target; the loss and its gradient are those of a slow loop."""
    for arch in golden.LAYERS:
        path, out, m = os.path.join(folder, arch + ".gguf"), os.path.join(folder, arch + "-mtp.gguf"), golden.tiny_mtp(arch, 16)
        golden.write_mtp(path, m)
        against_tandem(lambda tokens: m.logits(m(tokens)), path)
        where = states_of(folder, path, arch + "-states", "-1")
        a = train.parser().parse_args(["mtp", "--target", path, "--out", out, "--states", where, *COMMON, "--draft-vocab", "100", "--lr",
                                       "1e-3", "--epochs", "2"])
        done, held = train.run(a), corpus.Corpus([where], True)
        before, after = done["curve"][0], done["curve"][-1]
        expect(after["loss"] < before["loss"] and done["held"]["score"] >= before["score"], f"mtp of {arch}: {before} -> {after}")
        reads_back(folder, out, export.read(out, served.Served(path, held.seen())))
        unrolled(train.trainer(a, corpus.Corpus([where], False), held), held)
    refused("no layer that guesses", lambda: mtp.sizes(gguf.File(os.path.join(folder, "target.gguf"))))
    keys = {"general.architecture": "deepseek2", "deepseek2.block_count": 2, "deepseek2.nextn_predict_layers": 1}
    gguf.write(os.path.join(folder, "deep.gguf"), keys, {"blk.1.nextn.eh_proj.weight": np.zeros((2, 4))})
    refused("training knows the MTP layers of qwen35, qwen35moe", lambda: mtp.sizes(gguf.File(os.path.join(folder, "deep.gguf"))))


def unrolled(t, texts):
    """A trainer's loss against its formula: each row of each step by a sequence of its own, whose last rows get the draft's outputs."""
    t.a.blind = 0
    b, steps = corpus.Batch([corpus.cut(x, n)._replace(prompt=0) for x, n in zip(texts.texts, (14, 11))], t.taps), []
    for s in range(t.a.steps):
        total, rows = 0, 0
        for ids, states, judged, n, numbers, logs in zip(b.ids, b.states[-1], b.judged, b.lengths, b.top_ids, b.top_logprobs):
            for p in range(1 + s, n):
                known = t.head.back[numbers[p]]
                if not judged[p] or known[0] < 0:
                    continue
                mine = t.head(naive.draft(t.side, t.target, ids[:p + 1].tolist(), states, p - s)[-1]).log_softmax(-1)
                share = logs[p].exp() * (known >= 0)
                share = share / share.sum()
                total, rows = total + (share * (share.clamp(min=1e-30).log() - mine[known.clamp(min=0)])).sum(), rows + 1
        steps.append(total / max(1, rows))
    want = sum(t.a.fade ** s * x for s, x in enumerate(steps)) / sum(t.a.fade ** s for s in range(t.a.steps))
    got, p = t.loss(b), t.side.nextn["eh_proj"].weight
    expect(abs(got.item() - want.item()) < 1e-4, f"the loss of {t.a.steps} steps is {got.item()}: want {want.item()}")
    mine, theirs = (torch.autograd.grad(x, p)[0] for x in (got, want))
    expect((mine - theirs).abs().max() < 1e-4 * theirs.abs().max() + 1e-6, "the gradient of the steps' loss is not that of its formula")


def mixed(folder, path):
    """A mixture of the target learns, with its MTP layer. tandem computes the same with it, and with the larger mixture of the same
    function, as this program."""
    out, large = os.path.join(folder, "mixture.gguf"), os.path.join(folder, "large.gguf")
    args = ["--target", path, "--out", out, "--states", os.path.join(folder, "states"), *COMMON, "--experts", "8", "--used", "2",
            "--width", "16", "--shared", "32"]
    m, before, after = mixture.run(mixture.parser().parse_args(args))
    expect(after["kl"] < before["kl"] and after["chain"][0] > before["chain"][0], f"mixture: {before} -> {after}: want it to learn")
    mixture.enlarge(mixture.parser().parse_args(["--target", out, "--out", large, "--enlarge", "64", "32", "--type", "f32"]))
    for file in (out, large):
        against_tandem(lambda tokens: m.logits(m(tokens)), file)


def resumed(folder, path):
    """A run that starts from a finished one begins where that one ended; a checkpoint of other settings is refused, and one of the same
    settings ends like a run without a break."""
    out, where = os.path.join(folder, "medusa.gguf"), os.path.join(folder, "states")
    args = ["medusa", "--target", path, "--out", os.path.join(folder, "more.gguf"), "--states", where, *COMMON, "--epochs", "1"]
    with open(out + ".json") as f:
        ended = json.load(f)["held"]["loss"]
    begun = train.run(train.parser().parse_args([*args, "--from", out]))["curve"][0]["loss"]
    expect(abs(begun - ended) < 1e-3, f"--from: held-out loss {begun} at the start, but {ended} at the end of the run before")
    torch.save({"kept": '{"settings": {"kind": "other"}}'}, os.path.join(folder, "more.gguf.ckpt"))
    refused("other settings", lambda: train.run(train.parser().parse_args(args)))
    whole = train.run(train.parser().parse_args([*args, "--fresh"]))
    keep, loop.BETWEEN, save = loop.BETWEEN, -1, loop.Run.save

    def stop(run):
        save(run)
        if run.step == whole["steps"] // 2:
            raise KeyboardInterrupt
    loop.Run.save = stop
    try:
        train.run(train.parser().parse_args(args))
        expect(False, "the run was not stopped")
    except KeyboardInterrupt:
        loop.Run.save = save
    again = train.run(train.parser().parse_args(args))
    loop.BETWEEN = keep
    expect(again["loss"] == whole["loss"], f"a run that was stopped ends with loss {again['loss']}: want {whole['loss']}")
    wrong = args[:args.index("--states")] + ["--states", folder, *COMMON]
    refused("no shards", lambda: train.run(train.parser().parse_args(wrong)))
    other = os.path.join(folder, "other.gguf")
    golden.write_target(other, golden.tiny(17))
    refused("lineage", lambda: train.run(train.parser().parse_args(["medusa", "--target", other, *args[3:]])))
    refused("taps", lambda: train.run(train.parser().parse_args(["eagle", *args[1:], "--taps", "4", "--init", "random"])))
    refused("fewer blocks", lambda: train.run(train.parser().parse_args(["eagle", *args[1:], "--blocks", "3"])))


def refused(why, call):
    try:
        call()
    except Refused as e:
        expect(why in str(e), f"{e}: want {why!r} in it")
    else:
        expect(False, f"what should say {why!r} was done")


def expect(ok, what):
    if not ok:
        sys.exit(f"training/check: {what}")


def main():
    torch.set_num_threads(1)
    target = golden.tiny(16)
    quantised()
    losses()
    rounds()
    formulas(target)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "target.gguf")
        golden.write_target(path, target)
        far = against_tandem(lambda tokens: target.logits(target(tokens, torch.arange(tokens.shape[1]))[0]), path)
        exclusion(folder)
        kinds(folder, path)
        mixed(folder, path)
        layers(folder)
        resumed(folder, path)
    print(f"training/check: all kinds learn, read back and agree with slow computations; logits within {far:.4f} of tandem's")


if __name__ == "__main__":
    main()
