#!/usr/bin/env python3
"""oracle.py COUNT SEED: random small vocabularies and texts full of markers, with the ids that two other engines give them.

It prints a JSON line for each vocabulary: its keys, the pieces behind those that all have (the bytes; with SentencePiece
<unk>, <s>, </s> and the bytes), their types, and for each text the ids without control tokens, then those with them if they
are others. The ids are those of Hugging Face's tokenizers, built as a model's tokenizer.json would say. llama.cpp
(llama-cpp-python) must give the same, but for the differences that differs() names; any other difference ends the program.
Needs: tokenizers 0.23, gguf, llama-cpp-python 0.3.36.

    python3 oracle.py 80 1 >oracle.jsonl
"""
import json, os, random, re, sys, tempfile, unicodedata

import gguf
from llama_cpp import Llama
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = '\u2581'
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# pre-tokenizer: regular expression, composed, whole words
PRES = {
    'qwen2': (CL100K % r'\p{N}', True, False),
    'qwen35': (ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", True, False),
    'llama-bpe': (CL100K % r'\p{N}{1,3}', False, True),
    'dbrx': (CL100K % r'\p{N}{1,3}', False, False),
    'gpt-4o': (CASED % (ENDINGS + '?', ENDINGS + '?', r'\p{N}{1,3}'), False, False),
    'tekken': (CASED % ('', '', r'\p{N}'), False, True),
    'gpt-2': (GPT2, False, False),
    'olmo': (GPT2, True, False),
}
MARKERS = ['<|u|>', '<|u|>x', '<|uu|>', '[U]', '[U] b', 'x y', '  ', '   ', '\n\n', '<|', '<|a', '<q>', '<q>é', ' <q>', 'e\u0301<', '\u00e9>', '<|z|>']
WORDS = ['a', 'b', 'ab', 'ba', 'x', 'y', ' ', ' ', '  ', '\n', '\n\n', '\t', 'é', 'e\u0301', 'e', '\u0301', '\u0323', '\u212b', 'K', '\u212a',
         'ſ', "'ſ", "'S", "'s", "'LL", "'re", 'A', 'ÅA', 'A\u030a', '\u1112\u1161\u11ab', '한', '1', '23', '456', '.', '<', '>', '|', '漢', '\U0001f600',
         '\u00a0', '\u3000', '\u0130', 'ß', '/', '…', '\u0958', '\u2126', '\u0344', '\u1e9b\u0323', '\ufb01', '<s>', '</s>', '<unk>', '<|end|>x']


def alphabet():
    """GPT-2's alphabet of bytes."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    table = {b: chr(b) for b in shown}
    table |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in table)}
    return table


BYTES = alphabet()


def letters(text):
    return ''.join(BYTES[b] for b in text.encode())


class Vocabulary:
    def __init__(self, rng, phi):
        self.phi = phi
        self.pieces, self.types, self.scores, self.merges, self.keys = [], [], [], [], {}
        self.rng, self.strip = rng, {}

    def add(self, piece, kind):
        if piece in self.pieces:
            return
        self.pieces.append(piece)
        self.types.append(kind)
        self.scores.append(float(-len(self.pieces)))

    def markers(self):
        for m in self.rng.sample(MARKERS, self.rng.randint(3, 10)):
            if self.phi and self.model == 'gpt2' and m.isspace():
                continue  # Phi-4 has none, and tokenizers drops one behind white space that is another token's
            # llama.cpp merges two characters to a control token, too
            self.add(m, USER if len(m) == 2 else self.rng.choice([CONTROL, USER, USER, UNKNOWN]))

    def file(self, path):
        w = gguf.GGUFWriter(path, 'llama')
        for key, value in self.keys.items():
            w.add_key_value(key, value, gguf.GGUFValueType.BOOL if isinstance(value, bool) else
                            gguf.GGUFValueType.UINT32 if isinstance(value, int) else gguf.GGUFValueType.STRING)
        w.add_tokenizer_model(self.model)
        w.add_token_list(self.pieces)
        w.add_token_types(self.types)
        if self.model == 'llama':
            w.add_token_scores(self.scores)
        else:
            w.add_token_merges(self.merges or ['a a'])
        w.add_uint32('llama.context_length', 64)
        w.add_uint32('llama.embedding_length', 8)
        w.add_uint32('llama.block_count', 1)
        w.add_uint32('llama.attention.head_count', 1)
        w.add_float32('llama.attention.layer_norm_rms_epsilon', 1e-5)
        w.add_uint32('llama.feed_forward_length', 8)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    def known(self, marked):
        """The pieces' ids, without those that text cannot become."""
        return {p: i for i, (p, k) in enumerate(zip(self.pieces, self.types)) if marked or k not in (CONTROL, UNKNOWN)}

    def added(self, t, marked):
        """Adds the tokens that are found in writing to a Hugging Face tokenizer."""
        for i, (p, k) in enumerate(zip(self.pieces, self.types)):
            if k == USER or marked and k in (CONTROL, UNKNOWN):
                left, right = self.strip.get(i, (False, False))
                t.add_tokens([AddedToken(p, normalized=False, lstrip=left, rstrip=right)])
                assert t.token_to_id(p) == i
        return t


class Sentences(Vocabulary):
    """A vocabulary as SentencePiece makes it."""
    model = 'llama'

    def __init__(self, rng, phi):
        super().__init__(rng, phi)
        self.add('<unk>', UNKNOWN)
        self.add('<s>', CONTROL)
        self.add('</s>', CONTROL)
        for b in range(256):
            self.add('<0x%02X>' % b, BYTE)
        for c in 'abxyeuA<>|' + SPACE + 'é':
            if rng.random() < .9 or c == SPACE:
                self.add(c, NORMAL)
        words = [c for c in self.pieces[259:] if c in SPACE + 'abxeA']
        for _ in range(rng.randint(0, 20)):
            piece = rng.choice(words) + rng.choice(words)
            if len(piece) < 6 and SPACE * 2 not in piece:
                words.append(piece)
                self.add(piece, NORMAL)
        self.markers()
        if phi:
            for m in '<|endoftext|>', '<|user|>', '<|end|>':
                self.add(m, rng.choice([CONTROL, USER]) if 'user' in m else CONTROL)  # for llama.cpp, ends are control tokens
            self.strip = {i: (False, True) for i, (p, k) in enumerate(zip(self.pieces, self.types))
                          if k in (CONTROL, USER, UNKNOWN) and p not in ('<unk>', '<s>', '<|endoftext|>')}
            self.keys['general.name'] = 'Phi-3 mini'
        self.prefix = rng.random() < .6
        self.keys |= {'tokenizer.ggml.add_space_prefix': self.prefix, 'tokenizer.ggml.bos_token_id': 1, 'tokenizer.ggml.eos_token_id': 2}

    def hugging(self, marked):
        text = {p for p, k in zip(self.pieces, self.types) if k == NORMAL}
        merges = []  # by the score of what they make: scores fall with the ids
        for p in self.pieces:
            if p in text:
                merges += [(p[:i], p[i:]) for i in range(1, len(p)) if p[:i] in text and p[i:] in text]
        t = Tokenizer(models.BPE(self.known(marked), merges, byte_fallback=True, fuse_unk=False))
        steps = [normalizers.Prepend(SPACE)] if self.prefix else []
        t.normalizer = normalizers.Sequence(steps + [normalizers.Replace(' ', SPACE)])
        return self.added(t, marked)


class ByteLevel(Vocabulary):
    """A byte-level vocabulary with merges."""
    model = 'gpt2'

    def __init__(self, rng, pre, phi):
        super().__init__(rng, phi)
        self.pre = pre
        for b in range(256):
            self.add(BYTES[b], NORMAL)
        words = [letters(w) for w in 'a b x e A é 한 å'.split() + [' ', "'", 'ſ', 's', '\n', 'K']]
        for w in words:  # characters of several bytes
            for i in range(2, len(w) + 1):
                self.merge(w[:i - 1], w[i - 1])
        for _ in range(rng.randint(0, 30)):
            left, right = rng.choice(words), rng.choice(words)
            if len(left + right) < 9:
                words.append(left + right)
                self.merge(left, right)
        self.add('<s>', CONTROL)
        self.add('</s>', CONTROL)
        self.markers()
        self.keys |= {'tokenizer.ggml.pre': pre, 'tokenizer.ggml.bos_token_id': self.pieces.index('<s>'),
                      'tokenizer.ggml.eos_token_id': self.pieces.index('</s>')}
        if phi:
            self.keys['general.architecture'] = 'phi3'
            if pre == 'gpt-4o':
                for m in '<|user|>', '<|end|>', '<|endoftext|>':
                    self.add(m, CONTROL)
            self.strip = {i: (pre == 'dbrx', True) for i, (p, k) in enumerate(zip(self.pieces, self.types))
                          if k in (CONTROL, USER, UNKNOWN) and (pre == 'dbrx' or p in ('<|user|>', '<|end|>'))}

    def merge(self, left, right):
        if [left, right] not in self.merges:
            self.add(left + right, NORMAL)
            self.merges.append([left, right])

    def file(self, path):
        keep, arch = self.merges, self.keys.pop('general.architecture', None)
        self.merges = [' '.join(m) for m in keep]
        super().file(path)
        self.merges = keep
        if arch:
            self.keys['general.architecture'] = arch

    def hugging(self, marked):
        regex, composed, whole = PRES[self.pre]
        t = Tokenizer(models.BPE(self.known(marked), [tuple(m) for m in self.merges], ignore_merges=whole))
        if composed:
            t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), 'isolated'),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        return self.added(t, marked)


def differs(v, text, marked):
    """The known reason for which llama.cpp gives a text other ids than the model's own tokenizer, or None."""
    if isinstance(v, ByteLevel):
        if PRES[v.pre][1] and unicodedata.normalize('NFC', text) != text:
            return 'no normal form C'
        if "'ſ" in text and v.pre not in ('gpt-2', 'olmo', 'tekken'):
            return 'no long s in contractions'
        if v.pre in ('gpt-4o', 'tekken') and not text.isascii():
            return 'the case of ASCII alone in gpt-4o and tekken'
        if v.strip:
            return 'no white space with the tokens of Phi-4'
    elif v.strip and re.search('[\u00a0\u3000]', text):
        return 'white space is ASCII alone'
    if v.strip and any(p[0].isspace() and p in text for p, k in zip(v.pieces, v.types) if k in (CONTROL, USER, UNKNOWN)):
        return 'white space is dropped before tokens are looked for'
    for i, (p, k) in enumerate(zip(v.pieces, v.types)):
        for q, l in zip(v.pieces, v.types):
            if k in (CONTROL, USER, UNKNOWN) and l in (CONTROL, USER, UNKNOWN) and p != q and p in text and q in text:
                for n in range(1, min(len(p), len(q))):
                    if p.endswith(q[:n]) and p + q[n:] in text:
                        return 'the longest token first, not the leftmost'
    return None


def main():
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    reasons, texts = {}, 0
    for n in range(count):
        pre = rng.choice(list(PRES))
        v = Sentences(rng, rng.random() < .3) if n % 2 else ByteLevel(rng, pre, pre in ('dbrx', 'gpt-4o') and rng.random() < .5)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'v.gguf')
            v.file(path)
            other = Llama(path, vocab_only=True, verbose=False)
        own = [v.hugging(False), v.hugging(True)]
        found = [p for p, k in zip(v.pieces, v.types) if k in (CONTROL, USER, UNKNOWN)]
        out = []
        for _ in range(24):
            text = ''.join(rng.choice(found if rng.random() < .3 else WORDS) for _ in range(rng.randint(0, 14)))
            ids = []
            for marked in False, True:
                a = own[marked].encode(text, add_special_tokens=False).ids
                b = other.tokenize(text.encode(), add_bos=False, special=marked)
                why = differs(v, text, marked)
                if a != b and not why:
                    sys.exit('%r marked %s: tokenizers %r llama.cpp %r\n%r' % (text, marked, [v.pieces[i] for i in a], [v.pieces[i] for i in b],
                             (v.keys, v.merges, list(zip(v.pieces, v.types))[256:])))
                if a != b:
                    reasons[why] = reasons.get(why, 0) + 1
                ids.append(a)
                texts += 1
            out.append([text, ids[0]] + [ids[1]] * (ids[0] != ids[1]))
        base = 259 if v.model == 'llama' else 256
        line = {'model': v.model, 'keys': v.keys, 'pieces': v.pieces[base:], 'types': ''.join(map(str, v.types[base:])),
                'merges': [' '.join(m) for m in v.merges], 'texts': out}
        print(json.dumps(line, ensure_ascii=False, separators=(',', ':')))
    print(texts, 'encodings; llama.cpp differs:', reasons, file=sys.stderr)


main()
