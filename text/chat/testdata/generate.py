#!/usr/bin/env python3
"""Writes random chat templates with what Jinja2 makes of them, set up as transformers' apply_chat_template does.

    generate.py SEED COUNT OUT.jsonl.gz [OLDER.jsonl.gz]

The first line holds the variables, each other line a template and its output (null: an error). Needs jinja2 3.1. TestJinja2 of
text/chat renders the same; with -jinja OUT.jsonl.gz -rewrite it takes out of a new file what tandem refuses by name. Templates whose
output tells an address of memory are left out here."""
import gzip, json, random, re, signal, sys
import jinja2, jinja2.ext, jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARIABLES = {
    'messages': [
        {'role': 'system', 'content': 'Be  brief.\n'},
        {'role': 'user', 'content': ' Hi, <b>"you"</b> & it\'s me\n\tok '},
        {'role': 'assistant', 'content': '<think>\nhm\n</think>\n\nDone: 12', 'reasoning_content': 'so'},
        {'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'c1', 'type': 'function', 'function': {
            'name': 'weather', 'arguments': {'city': 'Zürich', 'days': 3, 'big': 12345678901234567890, 'f': 1.0, 'e': 1e20}}}]},
        {'role': 'tool', 'content': '{"a": [1, 2.50]}', 'tool_call_id': 'c1', 'name': 'weather'},
        {'role': 'user', 'content': 'ẞß ǆ ﬁ İ Σίσυφος ΑΣ\u2028x'}],
    'tools': [{'type': 'function', 'function': {'name': 'weather', 'description': 'Tells "it" for <city>', 'parameters': {
        'type': 'object', 'properties': {'city': {'type': 'string', 'enum': ['a', None, 1.5]}, 'items': {'type': ['array', 'null']}},
        'required': ['city']}}}],
    'n': 3, 'neg': -7, 'zero': 0, 'big': 18446744073709551616, 'f': 2.5, 'tiny': 1e-7, 'huge': 1e22, 'half': 0.125,
    's': 'Hello World', 't': 'a-b_c', 'empty': '', 'num': ' 42 ', 'lines': 'one\n  two\r\nthree\n\nfour', 'uni': 'Äpfel 日本 ²½ é',
    'fmt': '%s|{}', 'yes': True, 'no': False, 'nil': None,
    'l': [3, 1, 2], 'strs': ['b', 'A', 'a', 'B', ''], 'mixed': [1, 'x', None, 2.0, True, [1], {'k': 1}], 'pairs': [['x', 1], ['y', 2]],
    'nested': [[1, [2, 3]], [4, [5, 6]]], 'nothing': [],
    'd': {'b': 1, 'a': 3, 'C': 2}, 'deep': {'x': {'y': [{'z': 'end'}]}, 'items': 5, 'keys': 'k'}, 'numkeys': {'1': 'one', 'two': 2},
    'recs': [{'n': 'a', 'k': 1, 'v': 'X'}, {'n': 'B', 'k': 2, 'v': 'y'}, {'n': 'c', 'k': 1, 'v': 'x'}, {'n': 'b', 'k': 0, 'v': 'Y'}],
    'tree': [{'n': 'r', 'c': [{'n': 's', 'c': []}, {'n': 't', 'c': [{'n': 'u', 'c': []}]}]}],
    'bos_token': '<s>', 'eos_token': '</s>', 'add_generation_prompt': True,
}

# by hand: what random templates seldom meet
HAND = r"""
{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 1 - - 1 }} {{ not not true }} {{ not 1 == 2 }}
{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 == true }} {{ 1 in [1] in [[1]] }}
{{ 'a' ~ 1 + 2 }}
{{ 1 + 2 ~ 3 }}
{{ 'a' ~ 1 ~ 2 * 3 }} {{ 'x' ~ missing is defined }} {{ l|length - 1 is odd }} {{ 5 is odd and not 4 is odd }} {{ - l[0] }} {{ 'a' if no }} {{ 1 if no else 2 if no else 3 }} {{ (1 if yes) if yes else 2 }}
{{ 0x1F }} {{ 0o17 }}
{{ (1,) == [1] }} {{ (1, 2) < (1, 3) }} {{ [1] + [2] }} {{ () }} {{ (1,) }} {{ 1, }} {{ (1, 2)[0] }} {{ [1, [2, (3,)]] }} {{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ {'b': 1, 'a': 2} }} {{ dict(b=1, a=2) }}
{{ recs|sort(attribute='k', reverse=true)|map(attribute='n')|join }} {{ recs|sort(attribute='v,n')|map(attribute='n')|join }} {{ ['b','A','B','a']|sort }} {{ ['b','A','B','a']|sort(true, true) }} {{ ['b','A','B','a']|unique(true)|join }} {{ d|dictsort(true) }} {{ d|dictsort(by='value', reverse=true) }} {{ recs|max(attribute='k') }} {{ recs|min(attribute='v') }} {{ ['a', 'B']|max(case_sensitive=true) }}
{% for g in recs|groupby('k') %}{{ g.grouper }}:{{ g.list|map(attribute='n')|join(',') }} {{ g[0] }}{{ g|length }};{% endfor %}{{ recs|groupby('v')|first }}{% for k, v in recs|groupby('v', case_sensitive=true) %}{{ k }}{{ v|length }}{% endfor %}
{{ range(5)[-1] }} {{ 3 in range(5) }} {{ range(3)|list == [0, 1, 2] }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 7|round }} {{ 1e300|round(2) }}
{{ '%s' % l }} {{ '%s %s'|format('a', 1) }}
{{ '{} {}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{:{}} {{ '{{}}
{{ 'abcabc'.rfind('a') }} {{ 'abcabc'.find('a', 1) }} {{ 'äöüä'.find('ä', 1) }} {{ [3, 1, 3].index(3, 1) }} {{ 'ab'.replace('', '-') }} {{ 'ab'.replace('', '-', 2) }} {{ ' a  b c '.split(none, 1) }} {{ 'a,b,,c'.split(',') }}
{{ 'a\r\nb\rc\nd\n'.splitlines() }} {{ 'a\x0bb\u2028c'.splitlines(true) }} {{ ''.splitlines() }} {{ '\n'.splitlines() }} {{ 'one two'.title() }} {{ "it's"|title }} {{ "it's".title() }} {{ 'hELLO'|capitalize }} {{ 'ß'|upper }} {{ 'ŉﬃ'.upper() }} {{ 'ΑΣ'.lower() }} {{ 'İ'.lower()|length }}
{{ '0x1f'|int(0, 16) }} {{ '12.9'|int }} {{ 'x'|int(5) }} {{ none|int }} {{ '99999999999999999999'|int }} {{ true|int }}
{{ "a" 'b' "c" }} {{ '\0' == '\x00' }} {{ 'a\'b' ~ "c\"d" }} {{ ['a\'b', "c\"", '\n\t\\', 'é\u200b\x7f'] }}
{{ 1 is sameas true }} {{ none is sameas none }} {{ 1 is eq true }} {{ 2 is divisibleby 2 }} {{ 'a' is in 'abc' }} {{ 1 is not in [2] }} {{ l is sequence }} {{ 5 is iterable }} {{ d is mapping }} {{ range(2) is sequence }} {{ l|map('string') is iterable }} {{ l|map('string') is sequence }} {{ dict is callable }} {{ 1.0 is integer }} {{ true is number }} {{ true is integer }}
{% macro m(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=4) }}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m() }}
{% macro box() %}<{{ caller('y') }}>{{ caller is defined }}{% endmacro %}{% call(x) box() %}{{ x }}!{% endcall %}{% macro opt() %}{% if caller %}c{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ opt() }}{% call opt() %}b{% endcall %}
{% filter upper|replace('A', 'x') %}abc{{ 'ä' }}{% endfilter %}{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}{% with %}{% set q = 1 %}{% endwith %}{{ q is defined }}{{ t }}{% set (x, (y, z)) = [1, [2, 3]] %}{{ x }}{{ y }}{{ z }}{% set x, = [4] %}{{ x }}
{% for i in l %}{{ loop.cycle('o', 'e') }}{{ loop.changed(i > 1) }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth0 }}{{ loop.revindex }};{% else %}none{% endfor %}{% for i in l %}{% continue %}{% else %}E{% endfor %}{% for i in l %}{% if loop.index == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for a, (b, c) in nested %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for k, v in d.items() if v > 1 %}{{ loop.index }}{{ k }}{{ loop.last }}{% endfor %}{% for k in d %}{{ k }}{% endfor %}{{ d.values()|list }}{{ d.keys()|list }}{{ 'a' in d.keys() }}{{ d.items()|first }}
{% set ns = namespace(d, e=5) %}{{ ns.a }}{{ ns['e'] }}{{ ns.zz is defined }}{% set ns.zz, w = 1, 2 %}{{ ns.zz }}{{ w }}{% if recs|selectattr('zz') %}always{% endif %}{{ recs|selectattr('zz')|list }}{% set g = l|map('string') %}{{ g|join }}{{ g|join }}|{{ (l|select('odd'))[0] is defined }}
{{ deep.items }}{{ deep['items'] }}
{{ deep['items'] }}{{ deep.x['y'].0.z }}{{ deep.get('items') }}{{ deep.items is callable }}{{ messages.append is defined }}{{ d.update is defined }}{{ ''.__class__ is defined }}{{ messages.append }}|{{ none.x }}{{ 5 .x }}
{{ ('<'|safe) + '<' }} {{ [('<'|safe)] }}
{{ 'x\n\ny'|indent(2, true, true) }}
{{ {'b': [1, 2.0, none, true], 'a': 'é<"\n\x7f'}|tojson }} {{ {'b': 1, 'a': {'c': []}} {{ [1, {}]|tojson(indent=0) }} {{ 'é'|tojson(true) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ [1, 2]|tojson(separators=(',', ':')) }} {{ 1e16|tojson }} {{ 12345678901234567890|tojson }} {{ messages[3].tool_calls|tojson }} {{ (1, (2,))|tojson }}
{{ strs|map('replace', 'a', 'z')|list }} {{ l|map('default', 1)|list }} {{ recs|map(attribute='n', default='q')|list }} {{ recs|rejectattr('k', 'gt', 1)|map(attribute='n')|list }} {{ l|select('in', [1, 2])|list }} {{ mixed|reject('none')|list|length }}
{{ d|items|list }} {{ missing|items|list }} {{ missing|list }} {{ missing|length }} {{ missing ~ 'a' }} {{ missing == zzz }} {{ missing in [1] }} {{ missing|default('d') }} {{ ''|d('e', true) }} {{ missing is none }} {{ [missing] }} {{ missing|join }} {{ l|first }} {{ nothing|first is defined }} {{ 'abc'|last }}
{{ missing.x }}
{{ missing + 1 }}
{{ missing < 1 }}
{{ [1, 'a']|sort }}
{{ [none, none]|sort }} {{ [{'a': 1}, {'a': 1}]|sort }}
{{ messages.append(1) }}
{{ 'a'|nope }}
{% if false %}{{ 'a'|nope }}{{ 1 is nope }}{% endif %}{{ 'x' if true else 'a'|nope }}
{% if false %}{% for i in l %}{{ 'a'|nope }}{% endfor %}{% endif %}
{{ range(100001)|length }}
{{ 1 is odd is even }}
{% set loop = 1 %}{{ loop }}
{% for i in l %}{% set loop = 1 %}{% endfor %}
{% macro f(a, a) %}{% endmacro %}
{% if yes: %}a{% elif no: %}b{% else: %}c{% endif %}{% for i in l: %}{{ i }}{% endfor %}
  {%- raw -%}  {{ x }}  {%- endraw -%}  |{% raw %}
 a
  {% endraw %}
b
  {#- c -#}  d {# e #}
f
   {%+ if yes %}
  g
   {%- endif +%}
h
  {{- 1 -}}  i {#- x +#}
j
  {% raw -%}
  k {%+ endraw %}
  {# m +#}
n
{#-#} o {#+#} p {#--#} q
""".strip('\n')

HAND = HAND[:HAND.index('  {%- raw -%}')].splitlines() + [HAND[HAND.index('  {%- raw -%}'):]]


class Generation(jinja2.ext.Extension):
    tags = {'generation'}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(['name:endgeneration'], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method('_support'), [], [], body).set_lineno(lineno)

    def _support(self, caller):
        return caller()


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters['tojson'] = tojson
    env.globals['raise_exception'] = raise_exception
    for refused in ('pprint', 'random', 'striptags', 'urlize', 'wordwrap'):
        del env.filters[refused]
    del env.globals['lipsum']
    return env


def render(env, template, variables):
    """The output, None for an error, False if it cannot be compared."""
    def late(*_):
        raise TimeoutError
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 1)
    try:
        out = env.from_string(template).render(**variables)
    except (TimeoutError, MemoryError, RecursionError):
        return False
    except Exception as e:
        if 'complex' in str(e):
            return False
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if len(out) > 3000 or re.search(r'0x7[0-9a-f]{6}|at.{1,3}0x|(<|3C|lt;)function|built-in|<class|jinja2|templatereference|generator|iterator|bound method', out, re.I):
        return False
    try:
        out.encode()
    except UnicodeEncodeError:
        return False
    return out


class Generator:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.local = []

    def pick(self, *options):
        option = self.r.choice(options)
        return option() if callable(option) else option

    def maybe(self, p):
        return self.r.random() < p

    def some(self, f, low=0, high=3):
        return [f() for _ in range(self.r.randint(low, high))]

    # expressions by kind; every tenth is of any kind, so that errors are met too
    def expr(self, kind=None, depth=3):
        if kind is None or self.maybe(0.07):
            kind = self.pick('int', 'int', 'num', 'str', 'str', 'bool', 'list', 'dict', 'any')
        e = getattr(self, kind)(depth - 1)
        if self.maybe(0.06):
            e = f'({e})'
        if depth > 1 and self.maybe(0.05):
            e = f'{e} if {self.expr("bool", depth - 1)}' + (f' else {self.expr(kind, depth - 1)}' if self.maybe(0.7) else '')
            if self.maybe(0.7):
                e = f'({e})'
        return e

    def any(self, depth):
        if depth <= 0 or self.maybe(0.4):
            return self.pick('nil', 'mixed', 'missing', 'none', 'messages', 'tools', 'messages[3]', 'deep.x', 'none', 'loop', 'messages[-1]',
                             *self.local, *VARIABLES)
        a = self.expr(None, depth)
        return self.pick(lambda: f'{a}.{self.name()}', lambda: f'{a}[{self.expr(None, depth)}]', lambda: f'{a}|first', lambda: f'{a}|last', lambda: f'({a})[{self.slice(depth)}]',
                         lambda: f'{a}|default({self.expr(None, depth)})', lambda: f'{a}|d({self.expr(None, depth)}, true)', lambda: f'{a} or {self.expr(None, depth)}',
                         lambda: f'{a} and {self.expr(None, depth)}', lambda: f'({a})|attr({self.name()!r})', lambda: f'{a}.get({self.expr("str", depth)})',
                         lambda: f'{a}|max', lambda: f'{a}|min(attribute={self.attr()})', lambda: f'({a}, {self.expr(None, depth)})', '()', lambda: f'({a},)',
                         lambda: f'{a}|reverse', lambda: f'{a}|items|list', lambda: f'{a}|max(true, {self.attr()})')

    def name(self):
        return self.pick('role', 'content', 'name', 'function', 'n', 'k', 'v', 'x', 'y', 'items', 'keys', 'a', 'missing', 'arguments', 'parameters',
                         'properties', 'type', 'get', 'upper', 'index', 'count', 'append', '__class__', 'update')

    def attr(self):
        return self.pick('"n"', '"k"', '"v"', '"role"', '"content"', '0', '1', '"function.name"', '"x.y"', '"0"', '"1.0"', 'none')

    def slice(self, depth):
        part = lambda: self.pick('', '', str(self.r.randint(-4, 5)), 'n', 'none' if self.maybe(0.1) else '')
        return f'{part()}:{part()}' + (f':{self.pick("", "2", "-1", "-2", "1", "0" if self.maybe(0.1) else "3")}' if self.maybe(0.4) else '')

    def int(self, depth):
        if depth <= 0 or self.maybe(0.3):
            return self.pick(str(self.r.randint(0, 12)), str(self.r.randint(0, 3)), 'n', 'neg', 'zero', 'big', '0x1F', '0b101', '0o17', '1_000', '9223372036854775807',
                             '18446744073709551615', 'loop.index', 'loop.index0', 'loop.length', 'loop.revindex', 'loop.depth')
        a, b = self.expr('int', depth), self.expr('int', depth)
        return self.pick(lambda: f'{a} + {b}', lambda: f'{a} - {b}', lambda: f'{a} * {b}', lambda: f'{a} // {b}', lambda: f'{a} % {b}', lambda: f'{a} + {b} * {self.expr("int", depth)}',
                         lambda: f'{self.r.randint(0, 4)} ** {self.r.randint(0, 5)}', lambda: f'{a} ** {self.r.randint(0, 3)}', lambda: f'-{a}', lambda: f'+{a}', lambda: f'- {a}|abs', lambda: f'{a}|abs', lambda: f'{self.expr("list", depth)}|length',
                         lambda: f'{self.expr("str", depth)}|length', lambda: f'{self.expr("str", depth)}|int', lambda: f'{self.expr(None, depth)}|int({a})', lambda: f'{self.expr("str", depth)}|int(0, {self.pick(0, 2, 8, 10, 16, 36)})',
                         lambda: f'{self.expr("list", depth)}|sum', lambda: f'{self.expr("str", depth)}.find({self.expr("str", 1)})', lambda: f'{self.expr("str", depth)}.rfind({self.expr("str", 1)}, {a})',
                         lambda: f'{self.expr("str", depth)}.count({self.expr("str", 1)})', lambda: f'{self.expr("str", depth)}.index({self.expr("str", 1)}, {self.r.randint(-3, 3)}, {self.r.randint(-3, 9)})', lambda: f'{self.expr("list", depth)}.index({self.expr(None, 1)})',
                         lambda: f'{self.expr("list", depth)}.count({self.expr(None, 1)})', lambda: f'{self.expr("num", depth)}|int', lambda: f'{a}|round', lambda: f'{self.expr("str", depth)}|wordcount',
                         lambda: f'{a}|round({self.r.randint(-2, 2)})', lambda: f'recs|map(attribute="k")|{self.pick("max", "min", "sum")}', lambda: f'recs|sum(attribute="k", start={a})', lambda: f'{b}|round(-1)')

    def num(self, depth):
        if depth <= 0 or self.maybe(0.3):
            return self.pick('f', 'tiny', 'huge', 'half', '1.5', '2.0', '1e3', '1E-2', '0.1', '3.', '1_0.2_5', '.5', '1e16', '123456789.125', '1.e2') if self.maybe(0.9) else self.int(0)
        a, b = self.expr('num', depth), self.expr(self.pick('num', 'int'), depth)
        return self.pick(lambda: f'{a} + {b}', lambda: f'{a} - {b}', lambda: f'{a} * {b}', lambda: f'{a} / {b}', lambda: f'{a} // {b}', lambda: f'{a} % {b}', lambda: f'{b} / {b}', lambda: f'{a}|round({self.r.randint(-2, 4)})',
                         lambda: f'{a}|round({self.r.randint(-1, 3)}, {self.pick("ceil", "floor", "common")!r})', lambda: f'{a}|abs', lambda: f'-{a}', lambda: f'{self.expr("str", depth)}|float', lambda: f'{self.expr(None, depth)}|float({a})',
                         lambda: f'[{a}, {b}]|sum', lambda: f'[{a}, {b}]|{self.pick("max", "min")}', lambda: f'{a} ** {self.r.randint(-2, 3)}', lambda: f'{b}|round(1)', lambda: f'{b}|float')

    def string(self):
        s = ''.join(self.pick('a', 'B', 'c', ' ', '-', '_', 'é', 'ß', '1', '<', '&', '"', "'", '%', '{', '}', '日', '.', ',', 'the ', 'İ', 'Σ', '#') for _ in range(self.r.randint(0, 7)))
        q = self.pick('"', "'")
        s = s.replace(q, '\\' + q)
        for esc in ('\\n', '\\t', '\\\\', '\\x41', '\\u00e9', '\\101', '\\q', '\\é', '\\r\\n', '\\0', '\\x1f', '\\u2028', '\\U0001F600', '\\v'):
            if self.maybe(0.03):
                i = self.r.randint(0, len(s))
                if not s[:i].endswith('\\'):
                    s = s[:i] + esc + s[i:]
        return q + s + q

    def str(self, depth):
        if depth <= 0 or self.maybe(0.3):
            return self.pick(self.string(), self.string(), 's', 't', 'empty', 'num', 'lines', 'uni', 'messages[1].content', 'messages[2]["content"]', 'messages[5].content', 'messages[0].role', 'eos_token', 'deep.x.y[0].z')
        a, b, c = self.expr('str', depth), self.expr('str', depth), self.expr('str', 1)
        i = self.r.randint(-2, 12)
        m = lambda: self.pick('upper', 'lower', 'title', 'capitalize', 'swapcase', 'casefold', 'strip', 'lstrip', 'rstrip')
        simple = self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'e', 'escape', 'forceescape', 'safe', 'tojson', 'urlencode', 'indent', 'reverse', 'center')
        return self.pick(
            lambda: f'{a} + {b}', lambda: f'{a} ~ {b}', lambda: f'{a} ~ {self.expr(None, depth)} ~ {b}', lambda: f'{a} ~ {self.int(1)} + {b}', lambda: f'{a}|{simple}', lambda: f'{self.expr(None, depth)}|{simple}', lambda: f'{a}.{m()}()', lambda: f'{a}.{self.pick("strip", "lstrip", "rstrip")}({c})',
            lambda: f'{a}|replace({c}, {b})', lambda: f'{a}.replace({c}, {b})', lambda: f'{a}.replace({c}, {b}, {self.r.randint(-1, 3)})', lambda: f'{a}|replace({c}, {b}, {self.r.randint(0, 2)})', lambda: f'{a}[{self.slice(depth)}]', lambda: f'{a}[{self.r.randint(-5, 5)}]',
            lambda: f'{self.expr("list", depth)}|join({c})', lambda: f'{self.expr("list", depth)}|join', lambda: f'{c}.join({self.expr("list", depth)})', lambda: f'recs|map(attribute="n")|join({c})', lambda: f'recs|join({c}, attribute={self.attr()})',
            lambda: f'{a}|truncate({self.r.randint(3, 12)}{self.pick("", ", true", ", false, " + c, ", leeway=0")})', lambda: f'{a}|indent({self.r.randint(0, 4)}, {self.pick("true", "false")}, {self.pick("true", "false")})', lambda: f'{a}|indent({c}, first=true)',
            lambda: f'{a} * {self.r.randint(-1, 3)}', lambda: f'{self.r.randint(0, 3)} * {a}', lambda: f'{a}.{self.pick("center", "ljust", "rjust")}({i}{self.pick("", ", " + repr(self.pick("*", " ", "é")))})', lambda: f'{a}.zfill({i})', lambda: f'{a}.expandtabs({self.pick("", 4)})',
            lambda: f'{a}.removeprefix({c})', lambda: f'{a}.removesuffix({c})', lambda: f'{a}|trim({c})', lambda: f'{self.expr(None, depth)}|tojson', lambda: f'{self.expr(None, depth)}|string', lambda: f'{self.json(depth)}', lambda: f'{a}|center({i})',
            lambda: self.percent(depth), lambda: self.format(depth), f'{self.expr("num", depth)}|filesizeformat', f'{self.expr("int", depth)}|filesizeformat(true)', f'{self.expr("dict", depth)}|xmlattr', f'{self.expr("dict", depth)}|urlencode', f'{self.expr("list", depth)}|string')

    def json(self, depth):
        options = [self.pick('indent=2', 'indent=4', 'indent=0', 'indent=none', 'indent="-"', 'indent=-1')] if self.maybe(0.5) else []
        options += ['sort_keys=true'] if self.maybe(0.2) else []
        options += ['ensure_ascii=' + self.pick('true', 'false')] if self.maybe(0.3) else []
        options += [self.pick('separators=(",", ":")', 'separators=[", ", " = "]')] if self.maybe(0.3) else []
        return f'{self.expr(self.pick("dict", "list", None), depth)}|tojson' + (f'({", ".join(options)})' if options else '')

    def percent(self, depth):
        spec = lambda: '%' + self.pick('', '', '-', '+', '0', '#', ' ', '-0', '+0') + self.pick('', '', '5', '8', '12') + self.pick('', '', '.0', '.2', '.5') + self.pick(*'dsxsdfXogeriucaEG')
        specs = [spec() for _ in range(self.r.randint(0, 3))]
        text = ''.join(self.pick('', 'a', '|', ' ', '%%') + s for s in specs) + self.pick('', 'z')
        value = lambda s: self.expr(self.pick(None, 'int') if s[-1] in 'dxXoiuc' else 'num' if s[-1] in 'fgeEG' else None, 2)
        values = [value(s) for s in specs]
        if self.maybe(0.2):
            return f"'%(a){spec()[1:]}-%(b)s' % d" if self.maybe(0.5) else f"'%(x)s %(y)s'|format(x={self.expr(None, 2)}, y={self.expr('str', 2)})"
        if self.maybe(0.5):
            return f"'{text}'|format({', '.join(values)})"
        return f"'{text}' % " + (values[0] if len(values) == 1 and self.maybe(0.6) else f"({', '.join(values)}{',' if len(values) == 1 else ''})")

    def format(self, depth):
        spec = lambda: self.pick('', '', '', ':', '!r', '!s', '!a', ':>8', ':<6', ':^7', ':*^9', ':05', ':+d', ':,', ':_', ':x', ':#x', ':b', ':o', ':X', ':e', ':.2f', ':8.3f', ':g', ':%', ':.3', ':10.4', ':=+8', ':é<5',
                                      ':c', ':s', ':010,', ':d', ':.0f', ':G', ':#o', ':08.2f', '!r:>10', ':{}', ':<{}', ': d', ':012_x', ':.1%')
        field = lambda: '{' + self.pick('', '', '', '0', '1', 'x', 'x[0]', 'x.n', '0[n]', '0.k', '1[1]') + spec() + '}'
        text = ''.join(self.pick('', 'a', '|', '{{', '}}', ' ') + field() for _ in range(self.r.randint(0, 3)))
        values = self.some(lambda: self.expr(self.pick(None, 'int', 'num', 'str'), 2), 0, 3)
        if self.maybe(0.4):
            values.append(f'x={self.expr(None, 2)}')
        return f"'{text}'.format({', '.join(values)})"

    def bool(self, depth):
        if depth <= 0 or self.maybe(0.2):
            return self.pick('true', 'false', 'yes', 'no', 'True', 'False', 'missing', 'nil', 'add_generation_prompt', 'loop.first', 'loop.last')
        k = self.pick('int', 'str', 'num', 'list')
        a, b, c = self.expr(k, depth), self.expr(k, depth), self.expr(k, depth)
        op = lambda: self.pick('==', '!=', '<', '<=', '>', '>=')
        x = self.expr(None, depth)
        test = self.pick('defined', 'undefined', 'none', 'boolean', 'true', 'false', 'string', 'number', 'integer', 'float', 'mapping', 'sequence', 'iterable', 'callable', 'odd', 'even', 'upper', 'lower', 'escaped', 'not defined', 'not none', 'not string',
                         'divisibleby 3', 'divisibleby(2)', f'eq {self.pick("n", "s", "1")}', f'in {self.pick("l", "s", "d", "[1, 2]")}', f'gt(1)', f'equalto("user")', f'ne {self.string()}', 'lt 3', 'ge(n)', 'sameas none', 'sameas(true)', 'filter', 'test', 'not in l',
                         'le 2', 'lessthan(1)', 'greaterthan 1')
        return self.pick(lambda: f'{a} {op()} {b}', lambda: f'{a} {op()} {b} {op()} {c}', lambda: f'{x} == {self.expr(None, depth)}', lambda: f'{x} is {test}', lambda: f'{a} ~ {x} is {test}', lambda: f'{a} + {x} is {test}', lambda: f'{x} is {test} {self.pick("and", "or")} {self.expr("bool", depth)}',
                         lambda: f'not {x}', lambda: f'not {x} is {test}', lambda: f'not not {x}', lambda: f'not {a} {op()} {b}', lambda: f'{self.expr("bool", depth)} and {self.expr("bool", depth)} or {self.expr("bool", depth)}', lambda: f'{x} in {self.expr(self.pick("list", "str", "dict"), depth)}',
                         lambda: f'{x} not in {self.expr("list", depth)}', lambda: f'{self.expr("str", depth)} in {self.expr("str", depth)}', lambda: f'not {x} in {self.expr("list", depth)}', lambda: f'{a} {op()} {b} == {self.expr("bool", depth)}', lambda: f'{x} in {self.expr("list", depth)} == {self.expr("bool", depth)}',
                         lambda: f'{self.expr("str", depth)}.{self.pick("startswith", "endswith")}({self.expr("str", 1)}{self.pick("", ", 1", ", -3, 4")})', lambda: f'{self.expr("str", depth)}.startswith(("a", {self.expr("str", 1)}))',
                         lambda: f'{self.expr("str", depth)}.{self.pick("isdigit", "isnumeric", "isdecimal", "isalpha", "isalnum", "isspace", "isupper", "islower", "istitle", "isascii", "isidentifier", "isprintable")}()', lambda: f'{self.expr("list", depth)} == {self.expr("list", depth)}',
                         lambda: f'{self.expr("list", depth)} < {self.expr("list", depth)}', lambda: f'loop.changed({x})', lambda: f'{x} is {test} is {test}' if self.maybe(0.1) else f'({x} is {test}) is {test}')

    def list(self, depth):
        if depth <= 0 or self.maybe(0.25):
            return self.pick('l', 'strs', 'mixed', 'pairs', 'nested', 'none', 'recs', '[]', 'messages', lambda: f'range({self.r.randint(0, 5)})', 'range(1, 7, 2)', 'range(3, -2, -1)', 'deep.x.y', '"abc"', lambda: f'[{self.int(0)}, {self.int(0)}]', '(1, 2)', '()', 'd', 'missing')
        a, b = self.expr('list', depth), self.expr('list', depth)
        flag = lambda: self.pick('true', 'false')
        items = lambda: ', '.join(self.some(lambda: self.expr(None, depth), 0, 4))
        out = self.pick(lambda: f'[{items()}]', lambda: f'[{items()}]', lambda: f'({items()}, 1)', lambda: f'{a} + {b}', lambda: f'{a} * {self.r.randint(-1, 2)}', lambda: f'{a}[{self.slice(depth)}]', lambda: f'{a}|list', lambda: f'{a}|reverse|list', lambda: f'{a}|sort', lambda: f'{a}|sort(reverse={flag()}, case_sensitive={flag()})',
                        lambda: f'recs|sort(attribute="{self.pick("k", "n", "v", "k,n", "v,k", "missing", "k,missing")}", reverse={flag()})|map(attribute="n")', lambda: f'recs|sort({flag()}, {flag()}, "v")|map(attribute="n")', lambda: f'{a}|unique', lambda: f'{a}|unique({flag()})', lambda: f'recs|unique(attribute="{self.pick("k", "v", "n")}")', lambda: f'recs|unique({flag()}, "v")|map(attribute="n")',
                        lambda: f'{a}|map("{self.pick("upper", "string", "int", "length", "trim", "abs", "first", "list", "tojson", "title", "float", "e")}")', lambda: f'{a}|map("default", {self.expr(None, 1)})', lambda: f'recs|map(attribute={self.attr()})', lambda: f'messages|map(attribute="{self.pick("role", "tool_calls.0.function.name", "name")}", default={self.expr("str", 1)})',
                        lambda: f'{a}|{self.pick("select", "reject")}', lambda: f'{a}|{self.pick("select", "reject")}("{self.pick("odd", "even", "string", "number", "defined", "none", "mapping", "integer")}")', lambda: f'{a}|select("{self.pick("gt", "lt", "eq", "ne", "in", "divisibleby", "==", ">")}", {self.expr(None, 1)})', lambda: f'messages|selectattr("role", "{self.pick("eq", "equalto", "in", "ne")}", {self.pick(repr("user"), repr("tool"), "[" + repr("user") + "]", "s")})|map(attribute="role")',
                        lambda: f'recs|{self.pick("selectattr", "rejectattr")}({self.attr()})', lambda: f'recs|{self.pick("selectattr", "rejectattr")}("k", "{self.pick("odd", "gt", "defined", "string")}"{self.pick("", ", 0")})|map(attribute="n")', lambda: f'{a}|batch({self.r.randint(0, 3)}{self.pick("", ", 0", ", none", ", " + repr("x"))})', lambda: f'{a}|slice({self.r.randint(1, 3)}{self.pick("", ", 0", ", " + repr("x"))})',
                        lambda: f'{self.expr("dict", depth)}|dictsort', lambda: f'{self.expr("dict", depth)}|dictsort({flag()}, "{self.pick("key", "value")}", {flag()})', lambda: f'd|dictsort(by="value", reverse={flag()})', lambda: f'{self.expr("dict", depth)}.{self.pick("items", "keys", "values")}()', lambda: f'{self.expr("dict", depth)}|items', lambda: f'{self.expr("str", depth)}.split({self.pick("", self.string(), self.string() + ", 1", "none, 2", "maxsplit=1", "sep=" + self.string())})',
                        lambda: f'{self.expr("str", depth)}.rsplit({self.pick("", self.string(), self.string() + ", 1", "none, 1")})', lambda: f'{self.expr("str", depth)}.splitlines({self.pick("", "true")})', lambda: f'{self.expr("str", depth)}.{self.pick("partition", "rpartition")}({self.string()})', lambda: f'recs|groupby("{self.pick("k", "v", "n")}"{self.pick("", ", case_sensitive=true", ", default=1")})|map("{self.pick("first", "last", "length")}")', lambda: f'recs|groupby("v")|map(attribute="grouper")', lambda: f'{self.expr("str", depth)}|list', lambda: f'{a}.copy()',
                        lambda: f'range({self.expr("int", 1)})' if self.maybe(0.3) else f'{a}|map(attribute={self.attr()}, default=0)')
        if not out.startswith(('[', '(')) and self.maybe(0.6):
            out += '|list'
        return out

    def dict(self, depth):
        if depth <= 0 or self.maybe(0.3):
            return self.pick('d', 'deep', 'messages[3]', 'numkeys', 'recs[0]', '{}', 'tools[0].function', 'messages[3].tool_calls[0].function.arguments', 'deep.x', 'missing')
        key = lambda: self.expr(self.pick('str', 'int', 'str', 'bool', 'num'), 1) if self.maybe(0.9) else self.pick('none', '(1, 2)', '(1, "a")', '[1]', '1.0')
        pairs = ', '.join(f'{key()}: {self.expr(None, depth)}' for _ in range(self.r.randint(0, 3)))
        return self.pick(lambda: f'{{{pairs}}}', lambda: f'{{{pairs}}}', lambda: f'dict(a={self.expr(None, depth)}, Z=1, b=2)', lambda: f'dict({self.expr("dict", depth)}, q={self.expr(None, depth)})', lambda: f'dict(pairs, x=1)', lambda: f'dict(**{self.expr("dict", depth)})', 'dict(z=1, **d)', lambda: f'{self.expr("dict", depth)}.copy()')

    # statements
    def sign(self):
        return self.pick('', '', '', '', '-', '+')

    def tag(self, text):
        return '{%' + self.sign() + self.pick(' ', '', '  ', '\n') + text + self.pick(' ', '', '\n ') + self.sign() + '%}'

    def out(self, e):
        begin, end = self.pick('{{ ', '{{ ', '{{- ', '{{', '{{+ '), self.pick(' }}', ' }}', ' -}}', '}}')
        return begin + e + end

    def text(self):
        return self.pick('', '', ' ', '\n', '\n\n', '  \n  ', 'x', 'a\n', '\n  b ', '\t', 'é', '<|im_start|>', '{', '}', '%', '#', '{ {', '\r\n', ' \u2028')

    def target(self):
        return self.pick('a', 'b', 'c', 'x', 'y', 'n', 's', 'i', 'm')

    def bind(self, *names):
        self.local = list(self.local) + list(names)

    def body(self, depth):
        return ''.join(self.text() + self.statement(depth) for _ in range(self.r.randint(0, 3 if depth > 0 else 1))) + self.text()

    def statement(self, depth):
        kept = self.local
        kind = self.r.random()
        e = lambda k=None: self.expr(k, self.pick(1, 2, 3))
        if depth <= 0 or kind < 0.3:
            return self.out(e())
        body = lambda: self.body(depth - 1)
        if kind < 0.42:
            t = self.target()
            out = self.tag(f'if {e("bool")}') + body()
            for _ in range(self.pick(0, 0, 0, 1, 2)):
                out += self.tag(f'elif {e("bool")}') + body()
            if self.maybe(0.4):
                out += self.tag('else') + body()
            return out + self.tag('endif')
        if kind < 0.58:
            to, over = self.pick((self.target(), e('list')), (self.target(), e('list')), ('k, v', f'{e("dict")}.items()'), ('a, b', 'pairs'), ('a, (b, c)', 'nested'), ('(a, b)', e('dict') + '|items'), ('a, b', 'd|dictsort'), ('g, rs', f'recs|groupby("{self.pick("k", "v")}")'), ('m', 'messages'), ('r', 'recs'))
            self.bind(*re.findall(r'\w+', to), 'loop')
            cond = f' if {e("bool")}' if self.maybe(0.3) else ''
            inner = body()
            if self.maybe(0.4):
                inner += self.out(self.pick('loop.index', 'loop.cycle("o", "e")', 'loop.changed(' + re.findall(r'\w+', to)[0] + ')', 'loop.previtem', 'loop.nextitem', 'loop.last', 'loop.length', 'loop.revindex0', 'loop', 'loop.depth0', 'loop.first ~ loop.last'))
            if self.maybe(0.15):
                inner = self.tag('if loop.index ' + self.pick('== 2', '> 1', 'is odd')) + self.tag(self.pick('break', 'continue')) + self.tag('endif') + inner
            out = self.tag(f'for {to} in {over}{cond}') + inner
            self.local = kept
            if self.maybe(0.25):
                out += self.tag('else') + body()
            return out + self.tag('endfor')
        if kind < 0.68:
            t = self.target()
            self.bind(t)
            return self.pick(self.tag(f'set {t} = {e()}'), self.tag(f'set {t} = {e()}, {e()}'), self.tag(f'set a, b = {e("list")}'), self.tag(f'set (a, b) = {e()}, {e()}'), self.tag(f'set {t}') + body() + self.tag('endset'), self.tag(f'set {t} | {self.pick("upper", "trim", "length", "replace(" + repr("a") + ", " + repr("b") + ")", "indent|upper", "list")}') + body() + self.tag('endset'))
        if kind < 0.74:
            return self.tag(f'set ns = namespace({self.pick("", "x=1", "x=" + e(), "d, y=2")})') + body() + self.tag(f'set ns.{self.pick("x", "y")} = {self.pick("ns.x + 1", "ns.x ~ 1", e())}') + body() + self.out(self.pick('ns.x', 'ns.y', 'ns', 'ns["x"]', 'ns.b'))
        if kind < 0.83:
            params = self.pick('', 'a', 'a, b', 'a, b=2', f'a={e()}, b=a', 'x, y=none')
            self.bind('a', 'b')
            inner = body() + self.pick('', '', self.out('caller()'), self.out('varargs'), self.out('kwargs'), self.out('caller(1)'), self.out('a ~ b'))
            out = self.tag(f'macro f({params})') + inner + self.tag('endmacro')
            self.local = kept
            args = self.pick('', e(), f'{e()}, {e()}', f'{e()}, b={e()}', 'b=1, a=2', '*l', '*[1, 2]', '**{"a": 3}', '1, *[2]', 'q=1', '1, 2, 3')
            if self.maybe(0.3):
                return out + self.tag(f'call{self.pick("", "(q)", "(q=5)")} f({args})') + body() + self.pick('', self.out('q')) + self.tag('endcall')
            return out + self.out(f'f({args})') + self.pick('', self.out(f'f({args})|upper'), self.out('f'), self.out('f.arguments'))
        if kind < 0.87:
            return self.tag(f'with {self.pick("", "x = 1", "x = n, y = x", "a = " + e())}') + body() + self.out(self.pick('x', 'a', 'y')) + self.tag('endwith')
        if kind < 0.90:
            return self.tag(f'filter {self.pick("upper", "trim", "indent(2)", "upper|trim", "replace(" + repr("a") + ", " + repr("b") + ")", "length", "e")}') + body() + self.tag('endfilter')
        if kind < 0.93:
            return '{%' + self.sign() + self.pick(' ', '', '\n') + 'raw' + self.pick(' ', '') + self.pick('', '', '-') + '%}' + self.text() + self.pick('{{ x }}', '{% if %}', '{# #}', 'r', '{% endra %}', '', ' \n ') + self.text() + '{%' + self.sign() + self.pick(' ', '') + 'endraw' + self.pick(' ', '') + self.sign() + '%}'
        if kind < 0.96:
            return '{#' + self.sign() + self.pick(' c ', '', ' {{ x }} ', '\n', '-') + self.sign() + '#}'
        if kind < 0.97:
            return self.tag('generation') + body() + self.tag('endgeneration')
        if kind < 0.98:
            return self.tag('print ' + ', '.join(self.some(e, 0, 2)))
        if kind < 0.99:
            return self.pick('{% set c = cycler("a", 1) %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}', '{% set j = joiner("|") %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}', '{% set j = joiner() %}{{ j() }}{{ j() }}', '{% for k in tree recursive %}{{ k.n }}{{ loop.depth }}{% if k.c %}({{ loop(k.c) }}){% endif %}{% endfor %}')
        return self.pick('{% for x in l %}{% set z = x %}{{ z }}{% endfor %}{{ z }}', '{% set x = 1 %}{% macro g() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ g() }}', '{% set ns = namespace(f=false) %}{% for m in l if not ns.f %}{{ m }}{% set ns.f = true %}{% endfor %}', '{% set g = l|select("odd") %}{{ g|list }}{{ g|list }}', '{% if recs|selectattr("missing") %}t{% endif %}', "{{ deep.items }}{{ deep['items'] }}{{ deep['keys'] }}")

    def template(self):
        self.local = []
        kind = self.r.random()
        if kind < 0.45:
            out = '{{ ' + self.expr(None, self.pick(2, 3, 4)) + ' }}'
        else:
            out = self.body(self.pick(1, 2, 2, 3))
        if self.maybe(0.12):
            out = self.damage(out)
        return out

    def damage(self, source):
        """Drops, doubles, swaps or adds words of a template: what is wrong in one place, or means something else."""
        parts = re.findall(r'\{\{[-+]?|\{%[-+]?|[-+]?%\}|-?\}\}|\w+|\s+|.', source, re.S)
        for _ in range(self.r.randint(1, 2)):
            if not parts:
                break
            i = self.r.randrange(len(parts))
            action = self.pick('drop', 'double', 'swap', 'add', 'add')
            if action == 'drop':
                del parts[i]
            elif action == 'double':
                parts.insert(i, parts[i])
            elif action == 'swap' and i + 1 < len(parts):
                parts[i], parts[i + 1] = parts[i + 1], parts[i]
            else:
                parts.insert(i, self.pick(' not ', ' is ', ' in ', ' if ', ' else ', '(', ')', '[', ']', ',', '.', '|', '~', '-', '**', ' and ', '=', ':', '1', 'x', ' ', '"', '{{', '}}', '{%', '%}', '0', '_', '==', '<', '*', ' true '))
        return ''.join(parts)


def refused(source):
    """What tandem refuses by name, or cannot decide as Python does."""
    return bool(re.search(r'(map|select|reject|unique|batch|items|attr)\b[^|]*\|(string|safe|trim)|[\d)}]\s*\[[^\]]*:|'
                          r'sameas\s*\(?\s*(?!none|true|None|True)|\bblock\b|include|import|extends|autoescape|super\b', source))


def main():
    seed, count, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    env = environment()
    variables = json.loads(json.dumps(VARIABLES))
    gen = Generator(seed)
    seen, cases = set(), []
    if len(sys.argv) > 4:
        with gzip.open(sys.argv[4], 'rt') as f:
            older = [json.loads(line)['t'] for line in list(f)[1:]]
    else:
        older = HAND[::-1]
    while len(cases) < count:
        t = older.pop() if older else gen.template()
        if t in seen or t not in HAND and refused(t):
            continue
        seen.add(t)
        variables = json.loads(json.dumps(VARIABLES))
        want = render(env, t, variables)
        if want is False or want is None and t not in HAND and gen.maybe(0.6):
            continue
        cases.append({'t': t, 'w': want})
    with gzip.GzipFile(path, 'wb', 9, mtime=0) as f:
        for line in [{'variables': VARIABLES}] + cases:
            f.write((json.dumps(line, ensure_ascii=False) + '\n').encode('utf-8', 'surrogatepass'))


main()
