package chat

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

var llama = Special{BOS: "<s>", EOS: "</s>"}

func mustParse(t testing.TB, source string) *Template {
	t.Helper()
	tmpl, err := Parse(source, llama)
	if err != nil {
		t.Fatalf("Parse(%.200q): %v", source, err)
	}
	return tmpl
}

func render(t testing.TB, source string, o Options, messages ...Message) string {
	t.Helper()
	out, err := mustParse(t, source).Render(context.Background(), messages, o)
	if err != nil {
		t.Fatalf("Render(%.200q): %v", source, err)
	}
	return out.Text
}

func say(turns ...string) []Message {
	var out []Message
	for i := 0; i < len(turns); i += 2 {
		out = append(out, Message{Role: turns[i], Content: turns[i+1]})
	}
	return out
}

const weather = `[{"type": "function", "function": {"name": "weather", "description": "Tells \"it\" for <city>", ` +
	`"parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"minimum": 1, "default": 1.5}}}}}]`

// TestFamilies renders small templates written in the idioms of the families that people download.
func TestFamilies(t *testing.T) {
	noon := time.Date(2026, 3, 7, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name, source string
		o            Options
		messages     []Message
		want         string
	}{
		{"llama 2: system folded into the first turn, roles must alternate", `
{%- if messages[0]['role'] == 'system' -%}
    {%- set loop_messages = messages[1:] -%}{%- set system_message = messages[0]['content'] -%}
{%- else -%}
    {%- set loop_messages = messages -%}{%- set system_message = false -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate') }}
    {%- endif -%}
    {%- if loop.index0 == 0 and system_message != false -%}
        {%- set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] -%}
    {%- else -%}{%- set content = message['content'] -%}{%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' -%}
        {{ ' ' + content | trim + ' ' + eos_token }}
    {%- endif -%}
{%- endfor -%}`,
			Options{}, say("system", "Be brief.", "user", " Hi ", "assistant", "Hello.\n", "user", "Bye"),
			"<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Hi [/INST] Hello. </s><s>[INST] Bye [/INST]"},

		{"llama 3: headers, date, tools as indented JSON", `{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}`,
			Options{AddGenerationPrompt: true, Now: noon, Tools: json.RawMessage(`[{"b": 1, "a": []}]`)},
			say("system", " S ", "user", "U\n"),
			"<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 07 Mar 2026\n\n" +
				"{\n    \"b\": 1,\n    \"a\": []\n}\n\nS<|eot_id|>" +
				"<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},

		{"chatml", `{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}` +
			`{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`,
			Options{AddGenerationPrompt: true}, say("user", "a{{ 1 }}{% if %}", "assistant", "b"),
			"<|im_start|>user\na{{ 1 }}{% if %}<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>assistant\n"},

		{"qwen 2.5: tools and tool calls", `{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}`,
			Options{Tools: json.RawMessage(weather)},
			append(say("user", "q"), Message{Role: "assistant",
				ToolCalls: json.RawMessage(`[{"type":"function","function":{"name":"weather","arguments":{"city":"Zürich","b":[true,null]}}}]`)},
				Message{Role: "tool", Content: "12"}, Message{Role: "tool", Content: "13"}),
			"<|im_start|>system\n# Tools\n<tools>\n" +
				`{"type": "function", "function": {"name": "weather", "description": "Tells \"it\" for <city>", "parameters": ` +
				`{"type": "object", "properties": {"city": {"type": "string"}, "days": {"minimum": 1, "default": 1.5}}}}}` +
				"\n</tools><|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<tool_call>\n" +
				`{"name": "weather", "arguments": {"city": "Zürich", "b": [true, null]}}` + "\n</tool_call><|im_end|>\n" +
				"<|im_start|>user\n<tool_response>\n12\n</tool_response>\n<tool_response>\n13\n</tool_response><|im_end|>\n"},

		{"qwen 3: the thinking of earlier turns is dropped", `{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- else %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}`,
			Options{AddGenerationPrompt: true, Extra: map[string]json.RawMessage{"enable_thinking": []byte("false")}},
			append(say("user", "1", "assistant", "<think>\nhm\n</think>\n\nA", "user", "2"),
				Message{Role: "assistant", Content: "B", Reasoning: "so\n"}),
			"<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\n2<|im_end|>\n" +
				"<|im_start|>assistant\n<think>\nso\n</think>\n\nB<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},

		{"mistral: alternation counted in a namespace", `{{ bos_token }}
{%- set ns = namespace(index=0) %}
{%- for message in messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{%- set users = messages | selectattr("role", "equalto", "user") | list %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if message == users[-1] %}{{- '[LAST]' }}{%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- else %}
        {{- ' ' ~ message.content|trim ~ eos_token }}
    {%- endif %}
{%- endfor %}`, Options{}, say("user", "a", "assistant", "b ", "user", "c"), "<s>[INST] a[/INST] b</s>[LAST][INST] c[/INST]"},

		{"gemma: renamed role, a conditional inside an expression", `{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {{ raise_exception("parts") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}`, Options{AddGenerationPrompt: true}, say("system", "S", "user", "u", "assistant", " m "),
			"<s><start_of_turn>user\nS\n\nu<end_of_turn>\n<start_of_turn>model\nm<end_of_turn>\n<start_of_turn>model\n"},

		{"phi 3: one line", `{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + ` +
			`message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}` +
			`{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}` +
			`{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}`,
			Options{}, say("system", "", "user", "u"), "<|user|>\nu<|end|>\n</s>"},

		{"zephyr: block lines vanish, others keep their break", "{% for message in messages %}\n{% if message['role'] == 'user' %}\n" +
			"{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + " +
			"message['content'] + eos_token }}\n" +
			"{% endif %}\n  {% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}\n",
			Options{AddGenerationPrompt: true}, say("user", "u"), "<|user|>\nu</s>\n<|assistant|>\n"},

		{"deepseek: a flag in a namespace, the thought cut off",
			`{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}` +
				`{% set ns = namespace(is_first=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}` +
				`{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}` +
				`{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}` +
				`{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}` +
				`{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end｜>'}}{%- endif %}` +
				`{%- endfor -%}{% if add_generation_prompt %}{{'<｜Assistant｜><think>\n'}}{% endif %}`,
			Options{AddGenerationPrompt: true}, say("system", "S", "user", "u", "assistant", "<think>x</think>y", "user", "v"),
			"<s>S<｜User｜>u<｜Assistant｜>y<｜end｜><｜User｜>v<｜Assistant｜><think>\n"},

		{"macros, generation, break", `{%- macro turn(role, text='-') -%}[{{ role }}:{{ text }}]{%- endmacro -%}
{%- for m in messages -%}
  {%- if m.content == 'stop' %}{% break %}{% endif -%}
  {%- if m.role == 'system' %}{% continue %}{% endif -%}
  {% generation %}{{ turn(m.role, text=m.content) }}{% endgeneration %}
{%- endfor -%}{{ turn('end') }}`, Options{}, say("system", "s", "user", "a", "user", "stop", "user", "b"), "[user:a][end:-]"},
	} {
		if got := render(t, tc.source, tc.o, tc.messages...); got != tc.want {
			t.Errorf("%s:\n got %q\nwant %q", tc.name, got, tc.want)
		}
	}
}

// TestExpressions holds what Jinja2 3.1 (trim_blocks, lstrip_blocks) prints for each source.
func TestExpressions(t *testing.T) {
	for source, want := range map[string]string{
		`{{ 1 + 2 * 3 ** 2 - 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2.0 }} {{ 1e20 }}`:             "16 -4 2 3.5 2.0 1e+20",
		`{{ 'a' ~ 1 ~ none ~ true }}{{ x }}{{ [1, 'b', none, 2.5, {'k': "it's"}] }}`:                            `a1NoneTrue[1, 'b', None, 2.5, {'k': "it's"}]`,
		`{{ 'abc'[0] }}{{ 'abc'[-1] }}{{ 'äöü'[1:] }}{{ 'abcdef'[::-2] }}{{ [1,2,3][-2:] }}`:                    "acöüfdb[2, 3]",
		`{{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'x'.split('y')[-1] }}`:                           "['a', 'b,c'] ['a', 'b'] x",
		`{{ 'aXbX'.replace('X', '-') }}{{ 'aXbX'|replace('X', '', 1) }}{{ '<a>'.strip('<>') }}`:                 "a-b-abXa",
		`{{ 'ab cd'|title }}{{ 'aB'|upper }}{{ 'aB'|lower }}{{ 'aB c'|capitalize }}`:                            "Ab CdABabAb c",
		`{{ [3,1,2]|sort|join('-') }}{{ [1,1,2]|unique|list }}{{ [4,9]|max }}`:                                  "1-2-3[1, 2]9",
		`{{ u|default('d') }}{{ ''|default('e', true) }}{{ none|default('f') }}`:                                "deNone",
		`{{ [{'a':1},{'a':2},{}]|map(attribute='a')|select('defined')|list }}`:                                  "[1, 2]",
		`{{ [{'a':1},{'a':2}]|rejectattr('a','eq',1)|map(attribute='a')|first }}`:                               "2",
		`{{ {'b':1,'a':[1.0,"é\n"]}|tojson }}{{ {'b':1,'a':2}|dictsort }}`:                                      `{"b": 1, "a": [1.0, "é\n"]}[('a', 2), ('b', 1)]`,
		`{{ {'a':1}.get('b', 'z') }}{% for k, v in {'x':1,'y':2}.items() %}{{k}}{{v}}{% endfor %}`:              "zx1y2",
		`{{ 'a' if false }}{{ 'b' if true else 'c' }}{{ 1 if false else 2 if false else 3 }}`:                   "b3",
		`{{ ['a' if true else 'b', (1 if false else 2)] }}{{ ('x' if u else 'y')|upper }}`:                      "['a', 2]Y",
		`{% set a = 1 if u is defined else 2 %}{% set b, c = 3, 4 %}{{ a }}{{ b }}{{ c }}`:                      "234",
		`{% set x %}<{{ 1 }}>{% endset %}{{ x|length }}{{ 'in' in 'string' and 'q' not in 'z' }}`:               "3True",
		`{% for i in [1,2,3] if i != 2 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}`:               "1/2:1 2/2:3 ",
		`{% for i in [] %}x{% else %}none{% endfor %}{% for c in 'hé' %}{{ c }}.{% endfor %}`:                   "noneh.é.",
		`{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}`:                                   "1",
		`{% if true %}{% set x = 2 %}{% endif %}{{ x }}{{ 5 is odd }}{{ 4 is divisibleby(2) }}`:                 "2TrueTrue",
		`{{ '%}' }}{{ "}}" }}{# {{ c }} #}{% raw %}{{ r }}{% endraw %}{{ {'a': {'b': 1}}.a.b }}`:                "%}}}{{ r }}1",
		"{{ 'a'\n}}{%- if 1 ==\n 1 and\n not\n false %}x{% endif -%}\n  y":                                      "axy",
		"a\n  {% if true %}\nb\n  {% endif %}\nc {{ 1 }} {% if true %}d{% endif %}\n":                           "a\nb\nc 1 d",
		"a\n  {%+ if true +%}\nb{% endif %}":                                                                    "a\n  \nb",
		`{{ "\u00e9\x41\\n\q" 'z' }}`:                                                                           `éA\n\qz`,
		`{{ "%02d" }}{{ 'a\'b' }}{{ range(3)|list }}{{ range(5, 0, -2)|list }}`:                                 "%02da'b[0, 1, 2][5, 3, 1]",
		`{% set l = [] %}{% set l = l + [1] %}{{ l }}{{ l|tojson }}{{ true and 'x' or 'y' }}`:                   "[1][1]x",
		`{{ 'a b'|indent(2, true) }}{{ "1\n\n2"|indent(2) }}`:                                                   "  a b1\n\n  2",
		`{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}`:                "3210",
		`{{ 'X' in 'axb'|upper }} {{ 'a' in ['b'] + ['a'] and 1 not in [1] }} {{ ['q' if 1 in [1] else 'r'] }}`: "True False ['q']",
		`{% for m in ['A', 'b'] if 'a' in m|lower %}{{ m }}{% endfor %}{{ 'y' if not u|default(false) }}`:       "Ay",
		`{{ 3 * 'ab' }}{{ ['b', 'A']|sort }}{{ u in {'a': 1} }}`:                                                "ababab['A', 'b']False",
		`{{ '12'|int + 1 }}{{ 'x'|int(7) }}{{ 3.9|int }}{{ (1,2) }}`:                                            "1373(1, 2)",
	} {
		if got := render(t, source, Options{}); got != want {
			t.Errorf("%s\n got %q\nwant %q", source, got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for source, want := range map[string]struct {
		kind tandem.Kind
		text string
	}{
		`{{ raise_exception('only "user" <here>') }}`: {tandem.Invalid, `only "user" <here>`},
		"\n\n{{ x.y }}":                               {tandem.Invalid, `template line 3: "x" is undefined and has no "y"`},
		`{% include 'x' %}`:                           {tandem.Unsupported, "{% include %}"},
		`{% extends '/etc/passwd' %}`:                 {tandem.Unsupported, "{% extends %}"},
		`{% import 'x' as y %}`:                       {tandem.Unsupported, "{% import %}"},
		`{% from 'x' import y %}`:                     {tandem.Unsupported, "{% from %}"},
		`{% block x %}{% endblock %}`:                 {tandem.Unsupported, "{% block %}"},
		`{% do x() %}`:                                {tandem.Unsupported, "{% do %}"},
		`{{ [2, 1]|random }}`:                         {tandem.Unsupported, `filter "random" is not one that tandem knows`},
		`{{ lipsum() }}`:                              {tandem.Unsupported, "the function lipsum of Jinja"},
		`{{ 'a'.encode() }}`:                          {tandem.Unsupported, ".encode of a string"},
		`{{ '\N{DASH}' }}`:                            {tandem.Unsupported, "\\N"},
		"a\n{% for a in b %}x":                        {tandem.Invalid, "template line 2: a block has no end: want {% endfor %}"},
		`{% for a in b recursive %}x{% endfor %}`:     {tandem.Unsupported, "recursive loops"},
		`{% macro m() %}{{ kwargs }}{% endmacro %}`:   {tandem.Unsupported, "kwargs of a macro"},
		`{{ '%x' % 1 }}`:                              {tandem.Unsupported, `the format "%x"`},
		`{{ '{:>5}'.format(1) }}`:                     {tandem.Unsupported, `the format "{:>5}"`},
		`{{ 'a'.zfill(3) }}`:                          {tandem.Unsupported, ".zfill of a string"},
		`{{ [1]|sum }}`:                               {tandem.Unsupported, `filter "sum" is not one that tandem knows`},
		`{{ 'A' is upper }}`:                          {tandem.Unsupported, `test "upper" is not one that tandem knows`},
		`{{ 18446744073709551615 + 1 }}`:              {tandem.Unsupported, "computing with a whole number of more than 64 bits"},
		`{{ 9223372036854775807 + 1 }}`:               {tandem.Unsupported, "+ with such large whole numbers"},
		`{{ 1.5 // 1 }}`:                              {tandem.Unsupported, "// with a fraction"},
		`{{ {(1, 2): 3} }}`:                           {tandem.Unsupported, "a tuple as a key"},
		`{{ range(3) }}`:                              {tandem.Unsupported, "printing a range"},
		`{{ 'é'|tojson(sort_keys=true) }}`:            {tandem.Unsupported, "tojson with sort_keys"},
		`{{ strftime_now('%-j') }}`:                   {tandem.Unsupported, "%-j"},
		`{{ 1_000 }}`:                                 {tandem.Unsupported, "_ in the number"},
		`{% break %}`:                                 {tandem.Invalid, "{% break %} without a loop"},
		`{{ 'a'|frob }}`:                              {tandem.Unsupported, `filter "frob"`},
		`{{ 'a' is frob }}`:                           {tandem.Unsupported, `test "frob"`},
		`{{ 'a'.frob() }}`:                            {tandem.Unsupported, `".frob()" is called`},
		`{{ frob() }}`:                                {tandem.Unsupported, `"frob" is called`},
		`{{ ''.__class__.__mro__ }}`:                  {tandem.Unsupported, `the attribute "__class__"`},
		`{{ messages.append(1) }}`:                    {tandem.Unsupported, ".append()"},
		`{{ messages.String() }}`:                     {tandem.Unsupported, ".String()"},
		`{{ 'a' + 1 }}`:                               {tandem.Invalid, "a string + a number is not defined"},
		`{{ 1 / 0 }}`:                                 {tandem.Invalid, "division by zero"},
		`{{ 10 ** 100000 }}`:                          {tandem.Unsupported, "** with such large whole numbers"},
		`{{ (-8) ** 0.5 }}`:                           {tandem.Unsupported, "** with a fraction"},
		`{% if true %}x`:                              {tandem.Invalid, "line 1"},
		"x\n{% endfor %}":                             {tandem.Invalid, "template line 2: {% endfor %} without an open block"},
		`{{ 'abc }}`:                                  {tandem.Invalid, "a string has no end"},
		`{{ 1 `:                                       {tandem.Invalid, "a tag has no end: want }}"},
		`{# x`:                                        {tandem.Invalid, "a comment has no end"},
		`{{ a ! b }}`:                                 {tandem.Invalid, `character '!'`},
		`{{ (a] }}`:                                   {tandem.Invalid, "closes no bracket"},
		`{{ }}`:                                       {tandem.Invalid, "line 1"},
		`{{ a b }}`:                                   {tandem.Invalid, `want "}}", not "b"`},
		`{{ f(a=1, 2) }}`:                             {tandem.Invalid, "wrong order"},
		`{% raw %}x`:                                  {tandem.Invalid, "endraw"},
		`{% set messages.x = 1 %}`:                    {tandem.Invalid, "messages is a list, not a namespace"},
		`{{ strftime_now('%Q') }}`:                    {tandem.Unsupported, "%Q"},
		`{% if a %}{% else %}{% elif b %}{% endif %}`: {tandem.Invalid, "{% elif %} without an open block"},
	} {
		tmpl, err := Parse(source, llama)
		if err == nil {
			_, err = tmpl.Render(context.Background(), nil, Options{})
		}
		if !errors.Is(err, want.kind) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%q: error %v, want %v with %q", source, err, want.kind, want.text)
		}
	}
}

func TestCallersValues(t *testing.T) {
	tmpl := mustParse(t, `{{ tools|tojson }}{{ e|tojson }}`)
	for _, tc := range []struct {
		o    Options
		want string // of the error
	}{
		{Options{Tools: json.RawMessage(`[1`)}, "tools is not JSON"},
		{Options{Tools: json.RawMessage(`[] []`)}, "more than one JSON value"},
		{Options{Tools: json.RawMessage(strings.Repeat("[", 5000))}, "deep"},
		{Options{Tools: make(json.RawMessage, maxInput+1)}, "at most"},
		{Options{Extra: map[string]json.RawMessage{"e": []byte(`{1}`)}}, "e is not JSON"},
	} {
		if _, err := tmpl.Render(context.Background(), nil, tc.o); !errors.Is(err, tandem.Invalid) ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("error %v, want Invalid with %q", err, tc.want)
		}
	}
	o := Options{Extra: map[string]json.RawMessage{"e": []byte(`[null,true,1,2.5,"s",{"b":1,"a":{}}]`)}}
	if got, want := render(t, `{{ tools|tojson }}{{ e|tojson }}`, o), `null[null, true, 1, 2.5, "s", {"b": 1, "a": {}}]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
