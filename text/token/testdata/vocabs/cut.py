#!/usr/bin/env python3
"""cut.py FOLDER: makes the files beside it from the vocabularies of llama.cpp (models/ggml-vocab-NAME.gguf, .inp and .out in FOLDER).

A vocabulary is cut to the tokens that occur in a text of texts.inp, and to the merges between those; all other tokens but
bytes, control and user-defined ones go. Nothing else can become part of these texts, so they are encoded as before, with other
ids: key tandem.test.full_ids has those of the full vocabulary. NAME.out has the full ids of each text, NAME.marked those with control
tokens found in it where they are others, behind the text's number. They are llama.cpp's (llama-cpp-python 0.3.36); for the first 46 texts they must be those of its .out.
Needs: gguf, llama-cpp-python."""
import os, random, sys

import gguf
from llama_cpp import Llama

HERE, FOLDER = os.path.dirname(os.path.abspath(__file__)), sys.argv[1]
NAMES = ['llama-spm', 'gpt-2', 'starcoder', 'falcon', 'deepseek-coder']
MARK = '\n__ggml_vocab_test__\n'
SPACE = '\u2581'
RANGES = [(0x20, 0x7e)] * 5 + [(0xa0, 0x24f), (0x370, 0x52f), (0x590, 0x6ff), (0x900, 0xdff), (0x1100, 0x11ff), (0x2000, 0x206f),
          (0x2190, 0x2bff), (0x3000, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0x1f300, 0x1faff), (0x1d400, 0x1d7ff), (1, 0x20)]
WORDS = ['the', ' function', ' return', 'Println', ' is', ' and', 'ing', 'tion', "'s", "'LL", "'re", '12345', ' 3.14', '\n', '\n\n', '\t\t', '  ',
         '    ', '        ', ' \n', '\r\n', 'func main() {', ' if (x == 0)', '// ', '"""', ' über', ' été', ' 日本語', 'Привет', ' e\u0301', '😀']


def alphabet():
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    table = {b: chr(b) for b in shown}
    return table | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in table)}


BYTES = alphabet()


def letters(text):
    return ''.join(BYTES[b] for b in text.encode())


def more(rng, markers):
    out = ''
    for _ in range(rng.randint(1, 30)):
        kind = rng.random()
        if kind < .1:
            out += rng.choice(markers)
        elif kind < .7:
            out += rng.choice(WORDS)
        else:
            out += chr(rng.randint(*rng.choice(RANGES))) * rng.choice([1, 1, 1, 2, 5])
    return out


def line(ids):
    return ' '.join(map(str, ids)) + '\n'


def main():
    path = lambda name, end='': os.path.join(FOLDER, 'ggml-vocab-%s.gguf%s' % (name, end))
    files = {n: {k: f.contents() for k, f in gguf.GGUFReader(path(n)).fields.items()} for n in NAMES}
    markers = sorted({p for f in files.values() for p, t in zip(f['tokenizer.ggml.tokens'], f['tokenizer.ggml.token_type'])
                      if t in (2, 3, 4) and p.isascii()})
    rng = random.Random(30)
    first = open(path('gpt-2', '.inp')).read().removesuffix(MARK).split(MARK)
    texts = first + [more(rng, markers) for _ in range(134)]
    open(os.path.join(HERE, 'texts.inp'), 'w', newline='').write(MARK.join(texts))
    for name, f in files.items():
        full = Llama(path(name), vocab_only=True, verbose=False)
        lines = [[full.tokenize(t.encode(), add_bos=False, special=s) for t in texts] for s in (False, True)]
        given = open(path(name, '.out')).read().split('\n')
        assert [line(ids).split() for ids in lines[0][:len(first)]] == [l.split() for l in given[:len(first)]], name
        open(os.path.join(HERE, name + '.out'), 'w').write(''.join(map(line, lines[0])))
        marked = [line([n] + ids) for n, ids in enumerate(lines[1]) if ids != lines[0][n]]
        open(os.path.join(HERE, name + '.marked'), 'w').write(''.join(marked))
        cut(name, f, texts)


def cut(name, f, texts):
    key = 'tokenizer.ggml.'
    sentences = f[key + 'model'] == 'llama'
    whole = '\0'.join(SPACE + t.replace(' ', SPACE) if sentences else letters(t) for t in texts)
    tokens, types = f[key + 'tokens'], f[key + 'token_type']
    keep = [i for i, (p, t) in enumerate(zip(tokens, types)) if t != 1 or p in whole or not sentences and len(p) == 1]
    new = {old: i for i, old in enumerate(keep)}
    w = gguf.GGUFWriter(os.path.join(HERE, name + '.gguf'), f['general.architecture'])
    w.add_name(f['general.name'])
    w.add_tokenizer_model(f[key + 'model'])
    w.add_tokenizer_pre(f[key + 'pre'])
    w.add_token_list([tokens[i] for i in keep])
    w.add_token_types([types[i] for i in keep])
    if sentences:
        w.add_token_scores([f[key + 'scores'][i] for i in keep])
    else:
        w.add_token_merges([m for m in f[key + 'merges'] if m.replace(' ', '') in whole])
    for k, v in f.items():
        if k.endswith('_token_id'):
            w.add_uint32(k, new[v])
        elif k.startswith(key + 'add_'):
            w.add_bool(k, v)
    w.add_array('tandem.test.full_ids', keep)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


main()
