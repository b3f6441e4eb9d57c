"""Writes core/tokenizer/testdata/jinja.json: [template, variables, result of Jinja2 as transformers 4.57.6 sets it up].

Usage: python3 tools/golden/make_jinja.py core/tokenizer/testdata
"""

import json
import pathlib
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

MESSAGES = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi <b>\"you\"</b> é\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!"},
    {"role": "user", "content": "Bye", "tags": ["x", 1, 2.5, True, None], "extra": {"k": "v", "n": [1, {"z": "ü"}]}},
]
GLOBALS = {"messages": MESSAGES, "add_generation_prompt": True, "bos_token": "<s>", "tools": None, "n": 7, "empty": []}

TEMPLATES = [
    "plain\n", "a\n\n", "  {% if true %}\n  x\n  {% endif %}\n y", "a {%- if true -%} b {%- endif -%} c", "{{ 1 }}\n{{ 2 }}",
    "{# gone #}\nx {#- gone -#}  y", "  {%+ if true %}x{% endif +%}\ny", "a\n  {# c #}\n  b", "{{- ' x ' -}}  \n y",
    "{{ 'a' 'b' }}{{ \"it's\" }}{{ 'tab\\tnl\\nq\\'u\\u00e9' }}{{ '}}' }}{{ '%}' }}", "{{ n }} {{ n / 2 }} {{ n // 2 }} {{ n % 4 }} {{ -n // 2 }} {{ -n % 4 }}",
    "{{ n * 2 + 1 }} {{ 2 + n * 2 }} {{ (2 + n) * 2 }} {{ 1.5 + 1 }} {{ n - 10 }} {{ -n }}", "{{ 'a' ~ 1 ~ none ~ true }}",
    "{{ true }} {{ none }} {{ [1, 'a', none] }} {{ {'k': [1.0, \"it's\"]} }} {{ (1, 2) | length }}", "{{ missing }}|{{ missing is defined }}|{{ n is defined }}",
    "{{ missing | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }}", "{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 'a' != 'a' }}",
    "{{ 'b' in 'abc' }} {{ 1 in [1] }} {{ 2 not in [1] }} {{ 'role' in messages[0] }}", "{{ not true or true and false }} {{ '' or 'x' }} {{ 'a' and 'b' }}",
    "{{ 'x' if n > 3 else 'y' }}{{ 'x' if n > 30 }}", "{% if n > 9 %}a{% elif n > 6 %}b{% else %}c{% endif %}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}:{{ m['content'] }}{% else %}none{% endfor %}", "{% for m in empty %}x{% else %}none{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "{% for k, v in messages[3].items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in messages[0] %}{{ k }}{% endfor %}{% for c in 'añb' %}{{ c }}.{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem }}>{{ loop.nextitem.role if loop.nextitem is defined }};{% endfor %}",
    "{% set x = 1 %}{% for i in range(3) %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% if true %}{% set y = 2 %}{% endif %}{{ y }}",
    "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'assistant' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.found }}",
    "{% set text %}a{{ n }}\n{% endset %}[{{ text }}]", "{{ messages[-1].content }}{{ messages[1:]|length }}{{ messages[::-1][0].role }}{{ 'abcdé'[1:-1] }}{{ 'abc'[::-1] }}{{ 'abc'[-1] }}",
    "{{ messages[:2] | length }} {{ messages[10:] | length }} {{ 'abc'[:100] }} {{ 'abcdef'[::2] }} {{ 'abcdef'[4:1:-2] }}",
    "{{ messages[3].tags | tojson }} {{ messages[3].extra | tojson }} {{ messages[1] | tojson(indent=2) }} {{ empty | tojson }} {{ {} | tojson }}",
    "{{ ' x ' | trim }}|{{ ' x '.strip() }}|{{ 'xxax'.lstrip('x') }}|{{ 'axx'.rstrip('x') }}|{{ '\\u3000x\\n' | trim }}",
    "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}|{{ 'a b  c'.split() | length }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a'.split(',') }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith('ab') }}{{ 'abcabc'.replace('b', 'X') }}{{ 'a' | replace('a', 'b') }}",
    "{{ 'AbC' | lower }}{{ 'AbC' | upper }}{{ 'hELLO' | capitalize }}{{ 'AbC'.lower() }}{{ 'AbC'.upper() }}", "{{ [1, 2, 3] | join(', ') }}{{ ', '.join(['a', 'b']) }}{{ 'abc' | list }}",
    "{{ [3, 1] | first }}{{ [3, 1] | last }}{{ [3, 1] | reverse | list }}{{ 'abc' | length }}{{ n | string | length }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | join('-') }}",
    "{{ 'a' is string }}{{ n is number }}{{ messages is iterable }}{{ messages[0] is mapping }}{{ tools is none }}{{ tools is not none }}{{ n is odd }}{{ n is even }}{{ true is boolean }}{{ false is true }}{{ n is integer }}{{ messages is sequence }}",
    "{% macro show(m, sep=': ') %}[{{ m.role }}{{ sep }}{{ m.content | trim }}]{% endmacro %}{{ show(messages[0]) }}{{ show(messages[1], sep='=') }}",
    "{% set x = 'outer' %}{% macro f() %}{{ x }}{% endmacro %}{% for x in [1] %}{{ f() }}{% endfor %}", "{{ messages[0].get('role') }}{{ messages[0].get('none', 'd') }}{{ messages[0].keys() | list }}{{ messages[0].values() | list }}",
    "{% for i in range(2, 8, 3) %}{{ i }}{% endfor %}{{ range(3) | list }}{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}",
    "{% generation %}said{% endgeneration %}", "{{ bos_token + 'x' }}{{ [1] + [2] }}", "{{ (messages[0].content | trim) ~ '!' }}{{ 'a' ~ 'b' | upper }}{{ -1 | string }}",
    "{{ not n is odd }}{{ n is odd and tools is none }}{{ 'x' if tools is none else 'y' }}{{ messages[0]['role'] is defined and messages[0].role == 'system' }}",
    "{%- if messages[0].role == 'system' %}\n{{- messages[0].content + '\\n\\n' }}\n{%- endif %}\n{%- for message in messages %}\n  {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) %}\n    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n  {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% endif %}{% for message in loop_messages %}{% if loop.index0 == 0 and system is defined %}{{ '<<SYS>>' + system.strip() }}{% endif %}{{ message['content'].strip() }}{% endfor %}",
]

if __name__ == "__main__":
    rows = [[source, GLOBALS, _compile_jinja_template(source).render(**GLOBALS)] for source in TEMPLATES]
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    (pathlib.Path(sys.argv[1]) / "jinja.json").write_text(text)
