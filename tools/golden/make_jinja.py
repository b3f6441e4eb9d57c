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
    # Numbers, as Python's repr writes them.
    "{{ 100000.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.5e-7 }} {{ 123456789.125 }} {{ 0.1 + 0.2 }} {{ 1e22 * 10 }} {{ 2.0 }} {{ -0.5 }}",
    "{{ {'max': 100000.0, 'min': 0.0001, 'x': 1e-5} | tojson }} {{ [1e16, 3.0] | tojson }} {{ [100000.0, 1e16] }}",
    "{{ 7 // 2.0 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ true + 1 }} {{ 10 / 4 }} {{ 1 // 0.3 }}",
    "{{ '3' | int }} {{ ' 12 ' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '4.7' | int }} {{ '1.5' | float }} {{ none | int(2) }} {{ true | int }} {{ 'x' | float(0.5) }}",
    "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round }} {{ 2.1 | round(0, 'ceil') }} {{ 2.9 | round(method='floor') }} {{ -3 | abs }} {{ (-3) | abs }} {{ -2.5 | abs }}",
    # tojson
    "{{ messages[3].extra | tojson(ensure_ascii=true) }} {{ 'é😀\"\\\\\\n\\u0001\\u007f' | tojson }} {{ 'é😀\\u007f' | tojson(ensure_ascii=True) }} {{ 'é' | tojson(4) }}",
    "{{ messages[3] | tojson(separators=(',', ':')) }} {{ [1, {'a': [], 'b': {}}] | tojson(separators=[' ; ', ' = '], indent=2) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }}",
    "{{ messages[1] | tojson(indent='--') }} {{ [1, [2]] | tojson(indent=0) }} {{ (1, 2) | tojson }} {{ {1: 'a', none: 2, true: 3, 1.5: 4} | tojson }} {{ [] | tojson(indent=2) }}",
    # Safe texts
    "{{ ('<b>' | safe) + '<i>' }} {{ '<i>' + ('<b>' | safe) }} {{ ('<b>' | safe) ~ '<i>' }} {{ '<&>\"' | e }} {{ '<b>' | safe | e }} {{ '<b>' | safe | forceescape }}",
    "{{ ('<b>' | safe).replace('b', '<') }} {{ '<b>' | safe | replace('b', '<') }} {{ ('<b>' | safe | trim) + '<' }} {{ ['<b>' | safe, '<i>'] | join('<') }} {{ ['<b>' | safe] }} {{ (('<' | safe) * 2) + '>' }}",
    "{{ ('-' | safe).join(['<b>', '<i>' | safe]) }} {{ ('{}<' | safe).format('<') }} {{ '<b>' | safe is escaped }} {{ ('<b>' | safe)[0] + '<' }} {{ '<b>' | safe == '<b>' }}",
    # What is undefined
    "{{ 'a' in missing }} {{ 'a' not in missing }} {{ missing in [1] }} {{ missing in messages[0] }} {{ missing == missing }} {{ missing == none }} {{ missing | length }} {{ missing | list }} {{ [missing] }}",
    "{{ strftime_now is defined }} {{ namespace is defined }} {{ range is defined }} {{ strftime_now is callable }} {{ cycler is defined }} {{ (strftime_now('%Y-%m-%d') | length) }} {{ raise_exception is defined }} {{ dict is defined }}",
    "{{ missing is iterable }} {{ missing is sequence }} {{ missing is mapping }} {{ missing is string }} {{ messages[0].missing is defined }} {{ messages[0]['missing'] | default('d') }} {{ messages[9] is defined }}",
    # Dicts
    "{{ {1: 'a', 'k': 'b', none: 'c', (1, 2): 'd', 1.5: 'e'}[1] }} {{ {1: 'a'}[1.0] }} {{ {1: 'a'}[true] }} {{ {0: 'z', 512: 'x'} }} {{ {(1, 2): 'd'}[(1, 2)] }} {{ 1 in {1: 2} }}",
    "{% for k, v in {0: 0, 512: 128, 1024: 256}.items() %}{{ k }}:{{ v }} {% endfor %}{% for k in {3: 1} %}{{ k + 1 }}{% endfor %}",
    "{{ {'b': 1, 'A': 3, 'c': 2} | dictsort }} {{ {'b': 1, 'A': 3} | dictsort(true) }} {{ {'b': 1, 'a': 3} | dictsort(by='value', reverse=true) }} {% for k, v in {'y': 1, 'x': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}",
    "{{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ {'a': 1}.values() }} {{ dict(a=1, b='x') }} {{ dict({'a': 1}, b=2) }} {{ {'a': 1}.get('b') }} {{ {'items': 1}['items'] }} {{ {'a': 1} == {'a': 1.0} }}",
    "{{ (1,) }} {{ (1, 'a') }} {{ () }} {{ 1, 2 }} {{ [(1, 2)] }} {{ (1, 2) == [1, 2] }} {{ (1, 2) + (3,) }} {{ (1, 2)[0] }} {{ 'a\\x01\\u200b\\u00e9\\ue000' | list }} {{ ['\\\\', \"'\", '\"\\''] }}",
    # Methods and filters
    "{{ 'a-b c'.title() }} {{ 'a-b (c' | title }} {{ 'abc'.find('c') }} {{ 'éabc'.find('c') }} {{ 'abc'.find('z') }} {{ 'abcb'.rfind('b') }} {{ 'abab'.count('ab') }} {{ 'ab'.index('b') }}",
    "{{ '{} and {}'.format('a', 1) }} {{ '{0}{1}{0} {{x}}'.format('a', none) }} {{ '{name}'.format(name=[1]) }} {{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }}",
    "{{ 'a b  c d'.split(None, 1) }} {{ ' a b  c '.rsplit(None, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b '.split() }} {{ 'a'.split(maxsplit=1) }} {{ 'aXbX'.split('X') }}",
    "{{ 'abc'.startswith(('x', 'ab')) }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' \\t'.isspace() }} {{ 'AB'.isupper() }} {{ 'aaa'.replace('a', 'b', 2) }}",
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [3, 1, 2] | sort(reverse=true) }} {{ messages | sort(attribute='role') | map(attribute='role') | list }}",
    "{{ [1, 2, 1, 'a', 'A'] | unique | list }} {{ [1, 2.5] | sum }} {{ [{'n': 1}, {'n': 2}] | sum(attribute='n') }} {{ [2, 1] | min }} {{ ['a', 'B'] | max }} {{ [] | max }} {{ [] | sum }}",
    "{{ ['a', 'b'] | map('upper') | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2, 3] | reject('gt', 1) | list }} {{ [0, 1, ''] | select | list }} {{ [{'a': 1}, {}] | map(attribute='a', default='-') | join(',') }}",
    "{{ messages | map(attribute='extra.n.0', default='-') | list | last }} {{ messages | selectattr('extra') | list | length }} {{ messages | selectattr('role', 'in', ['user', 'system']) | list | length }} {{ messages | rejectattr('tags', 'defined') | list | length }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent('--', blank=true) }}|{{ 'abc' | reverse }}|{{ [1, 2] | join }}|{{ 'x' * 3 }}|{{ 2 * [1] }}",
    "{{ 5 is divisibleby 5 }} {{ 5 is gt 4 }} {{ 'a' is lower }} {{ 'A' is upper }} {{ true is number }} {{ true is integer }} {{ 'abc' is in 'abcd' }} {{ 3 is not in [1] }} {{ 'upper' is filter }} {{ (1, 2) is sequence }} {{ range(3) is iterable }}",
    "{% if messages | selectattr('role', 'equalto', 'nobody') %}a generator is true{% endif %}{{ messages[0].content.strip().split()[0] | lower | first }}",
    "{{ none | selectattr('a') | list }} {{ none | map('upper') | list }} {{ tools | reject | list | length }} {{ 0 | map('abs') | list }}",
    # Statements
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% with x = 1, y = 2 %}{{ x + y }}{% endwith %}{{ x is defined }}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% filter upper | trim %} abc {{ 'd' }} {% endfilter %}{% set t | trim | upper %} x {% endset %}[{{ t }}]{% for x in 1, 2 %}{{ x }}{% endfor %}{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% macro outer(x) %}<{{ caller(x) }}|{{ x }}>{% endmacro %}{% set y = 'y' %}{% call(v) outer('a') %}{{ v }}{{ y }}{% endcall %}{% call(w) outer(x='b') %}-{{ w }}{% endcall %}",
    "{% macro f(a, b='x', c=a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(*[1, 2]) }}{{ f(**{'a': 5}) }}{% for i in [1] %}{% set z = i %}{% macro g() %}{{ z }}{% endmacro %}{{ g() }}{% endfor %}",
    "{{ 'a' if missing }}{{ ('b' if missing else 'c') }}{% if 1, %}t{% endif %}{{ messages[0].content[1:3] + 'x' }}{{ [1, 2, 3][1:] }}{{ (1, 2, 3)[::-1] }}{{ 'é' in 'né' }}{{ messages[0].items() | list | length }}",
]

if __name__ == "__main__":
    rows = [[source, GLOBALS, _compile_jinja_template(source).render(**GLOBALS)] for source in TEMPLATES]
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    (pathlib.Path(sys.argv[1]) / "jinja.json").write_text(text)
