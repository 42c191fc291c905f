"""Templates of our own, feature by feature, for scripts/make_template_goldens.py: (name, template, variables)."""

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <b>\"there\"</b>"},
            {"role": "assistant", "content": "  Hello!\n"}, {"role": "user", "content": "Bye"}]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds \"two\" n\u00fcmbers", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number", "enum": [1, 2.5, None, True]}}, "required": ["a", "b"]}}}

CASES = []


def group(name, *cases):
    for i, case in enumerate(cases):
        template, *variables = case if isinstance(case, tuple) else (case,)
        CASES.append((f"{name}/{i}", template, *variables))


def outputs(name, variables, *expressions):
    group(name, *(("{{ " + expression + " }}", variables) for expression in expressions))


# ---- White space and tags ----

group("whitespace",
      "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}\n  b\n  {% endif %}\nc", "a  {% if true %}  b  {% endif %}  c",
      "a {%- if true -%} b {%- endif -%} c", "a\n\n{%- if true %}\n\nb\n{%- endif %}\n\nc", "  {%+ if true %}x{% endif %}", "a\n  {%+ if true %}\n  b{% endif %}",
      "{% if true +%}\nx{% endif +%}\ny", "{{ 1 }}\n{{ 2 }}", "  {{ 1 }}  \n", "x {{- 1 -}} y", "x {{+ 1 }} y", "{{-1}}", "{{ -1 }}", "{{ 1 -}}   \n  2",
      "a {#- comment -#} b", "a {# comment #} b", "  {# comment #}\nb", "a\n  {# comment #}\n  b", "{# a\nb #}c", "{#+ x +#}\nb", "{##}x", "{#-#} x",
      "a\r\nb\rc\n", "a\n\n", "\n", "", "{{ 'a\\nb' }}\n\n", "{% set x = 1 %}\n\n{{ x }}", "\t{% set x = 1 %}\n{{ x }}", "a\u00a0{%- if true %}b{% endif %}",
      "{% if true %}a{% endif %}  {% if true %}b{% endif %}", "{% if true %}\n  {% if true %}\n  x\n  {% endif %}\n{% endif %}\ny",
      "{%if true%}x{%endif%}", "{{1}}{{2}}", "{ { } } {% set a = {'b': {'c': 1}} %}{{ a['b']['c'] }}", "{{ {'a': {'b': 1}}}}", "%} }} #}", "{", "{x{{1}}{",
      "{%- for x in [1, 2] %}\n  {{- x }}\n{%- endfor %}\n", "line\n    {%- set x = 1 -%}\n    next",
      "{% for x in [1] -%}\n   a\n {%- endfor %} b", "{{ 1 }}   {%- if true %} x{% endif %}")
group("raw",
      "{% raw %}{{ x }}{% if %}{% endraw %}", "a {%- raw -%} b {{ {%- endraw -%} c", "{% raw %}\n{{ a }}\n{% endraw %}\nb", "  {% raw %}  x\n  {% endraw %}\n y",
      "{%raw%}{# a #}{%endraw%}", "{% raw %}{% endraw", "{% raw %}{%+ endraw +%}\nx", "{% raw -%}  a{% endraw %}")
group("syntax_errors",
      "{% if %}{% endif %}", "{{ }}", "{{ 1", "{% if true %}", "{% endif %}", "{% for x in %}{% endfor %}", "{% nothing %}", "{{ a b }}", "{{ 'a }}", "{# a",
      "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{% set = 1 %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{{ 1 + }}", "{{ a. }}", "{{ a.'b' }}", "{{ a | }}", "{{ a is }}",
      "{% break %}", "{% macro m( %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ f(*a, *b) }}", "{{ f(**a, **b) }}", "{% else %}",
      "{{ 1 if }}", "{{ $ }}", "{{ a ! b }}", "{{ 'a' is string is string }}", "{% for x in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
      "{% call x %}{% endcall %}", "{{ 1 'a' }}", "{% endfor %}", "{% if true %}{% else %}{% elif x %}{% endif %}", "{{ not }}", "{{ {'a' 1} }}", "{{ {1, 2} }}",
      "{% filter %}x{% endfilter %}", "{% with a %}{% endwith %}", "{{ '\\x1' }}", "{% block a-b %}{% endblock %}")
outputs("literals", {}, "1", "1_000", "0x1F", "0o17", "0b101", "1.5", "1e3", "1.5e-3", "2E+2", "1e16", "1e-5", "0.1", "123456789012345.0", "1e22", "1.0", "100.0", "'a'", '"a"',
        "'a' 'b' \"c\"", r"'\n\t\\\'\"'", r"'\x41\u00e9\U0001F600'", r"'\101\q'", "'a\\\nb'", "true", "True", "false", "none", "None", "[]", "[1, 'a', none, true, 2.0]", "(1,)", "()", "(1, 2)",
        "1, 2", "{}", "{'a': 1, 'b': [1, 2]}", "{1: 2, none: 3, true: 4}", "[1, 2,]", "{'a': 1,}", "'\u00e9\u4e2d\U0001F600'", "(1)", "1.", "1.e5", "007", "00", "'{{ }}'", "'%}'",
        "[[1, [2]], {'x': (1, 2)}]", "{'a': 1, 'a': 2}", "9223372036854775807", "-9223372036854775807 - 1")

# ---- Printing ----

outputs("printing", {}, "'it\\'s'", "['it\\'s', \"q\\\"q\", 'both\\'\"']", "['a\\nb\\t\\\\']", "['\\x00\\x1f\\x7f\\xa0\\u200b\\u00e9']", "[1.0, 1e100, 1e-7, 0.30000000000000004]", "1/3",
        "2/2", "[true, false, none]", "{'k': 'v', 'n': {'l': [1]}}", "('a',)", "(('a', 1), [])", "range(3)", "range(3)|list", "range(2, 8, 3)|list", "1e308 * 10", "-1e308 * 10", "[undefined_name]", "undefined_name",
        "['\U0001F600']", "{'a': 1}.keys()", "{'a': 1}.values()", "{'a': 1}.items()", "{'a': 1}.items()|list", "-0.0", "5 // 2.0", "1e15", "1e17 + 0.5", "0.00001", "0.0001")

# ---- Operators ----

outputs("arithmetic", {"n": 7, "f": 2.5, "s": "ab"}, "1 + 2 * 3", "(1 + 2) * 3", "7 / 2", "7 // 2", "-7 // 2", "7 // -2", "-7 % 3", "7 % -3", "7 % 3", "2 ** 10", "2 ** -1", "2 ** 3 ** 2", "-2 ** 2", "7.5 // 2", "-7.5 % 2",
        "7.5 % -2", "1 - 2 - 3", "n + f", "n * s", "s * 3", "s * 0", "s * -1", "[1] * 3", "2 * [1, 2]", "[1] + [2]", "(1,) + (2,)", "s + 'c'", "+n", "-n", "-f", "+true", "true + 1", "true * 'x'", "1 / 0", "1 // 0", "1 % 0", "1.0 / 0",
        "s + 1", "1 + s", "[1] + (2,)", "s - 'a'", "none + 1", "-s", "n ~ s ~ f ~ none ~ true", "1 ~ 2 + 3", "n + 1 ~ 2", "1 + 2 ~ 3 * 4", "0.1 + 0.2", "3.0 * 2", "10 ** 2 / 5", "2 ** 0.5", "7 // 2 * 2 + 7 % 2", "{} + {}", "undefined_name + 1", "1 + undefined_name",
        "'a' ~ undefined_name ~ 'b'", "1 - -1", "1--1", "2**-1", "[1, 2] * 2 + [3]", "-7 // 2.0", "1e308 ** 2", "(-8) ** 0.5 is defined")
outputs("comparison", {"n": 7, "l": [1, 2, 3], "d": {"a": 1}, "s": "hello"}, "1 < 2", "1 < 2 < 3", "1 < 2 > 3", "3 > 2 >= 2 == 2.0", "1 == 1.0", "true == 1", "'a' < 'b'", "'a' < 'B'", "'a' == 'a'", "'1' == 1", "none == none", "none == false", "[1] == [1]", "[1] == (1,)", "[1, 2] < [1, 3]",
        "[1] < [1, 0]", "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "{'a': 1} != {'a': 2}", "1 != 2", "1 < 'a'", "none < 1", "[] < 1", "2 in l", "5 in l", "5 not in l", "'a' in d", "'b' not in d", "'ell' in s", "'' in s", "1 in s", "none in l", "2.0 in l", "true in l", "[1] in [[1], 2]", "'a' in undefined_name",
        "1 in none", "1 in 5", "undefined_name == undefined_other", "undefined_name == none", "undefined_name < 1", "not 1 == 2", "not (1 == 1)", "l in [l]", "'a' in ['a', 'b'] and 'c' not in ['a']", "1 in [1] == true", "s == 'hello' == 'x'", "'\u00e9' > 'z'", "[] in d", "(1, 2) in [(1, 2)]")
outputs("logic", {"e": "", "l": [], "x": "x"}, "true and false", "true or false", "not true", "not not true", "e or 'default'", "x and 'y'", "e and 1", "l or e or none", "1 and 2 and 3", "0 or 0.0 or ''", "not e", "not l", "not {}", "not 'a'", "not none", "not undefined_name", "undefined_name or 'd'", "undefined_name and 1", "true and not false or false",
        "1 if true else 2", "1 if false else 2", "1 if false", "(1 if false) is defined", "'a' if e else 'b' if x else 'c'", "1 if x if e else 2", "[1 if true else 2, 3]", "not x in ['x']", "e if e else l if l else 'none'", "range(0) or 'empty'", "(x or y) ~ 'z'", "true and undefined_name.x", "false and undefined_name.x")

# ---- Names, attributes, items, slices ----

D = {"d": {"a": 1, "b": {"c": [10, 20, {"d": "deep"}]}, "items": "own", "0": "zero", "get": "own get"}, "l": [1, 2, 3, 4, 5], "s": "h\u00e9llo w\u00f6rld", "m": MESSAGES, "n": None, "t": True}
outputs("lookup", D, "d.a", "d['a']", "d.b.c[2].d", "d['b']['c'][1]", "d.x", "d['x']", "d.x.y", "d['x']['y']", "d.items is callable", "d['items']", "d['values'] is callable", "d.get('a')", "d.get('x')", "d.get('x', 'fallback')", "d.get('x', default=1)", "d.0", "d['0']", "l[0]", "l[-1]", "l[10]", "l[-6]", "l.0", "l['a']", "l.x", "s[1]", "s[-1]", "s[100]",
        "n.x", "n['x']", "n.x.y", "l[1:3]", "l[:2]", "l[2:]", "l[-2:]", "l[::2]", "l[::-1]", "l[3:1]", "l[3:0:-1]", "l[10:]", "l[:-1]", "l[-10:2]", "s[1:4]", "s[::-1]", "s[-3:]", "s[:-3]", "s[::2]", "(1, 2, 3)[1:]", "range(5)[1:3]|list", "d[1:2]", "n[1:]", "m[0].role", "m[1:][0]['content']", "m[-1]['role']", "m|length", "undefined_name[0]", "undefined_name.x",
        "undefined_name[1:]", "(undefined_name or {}).x is defined", "d.b.c|first", "d.keys()|list", "d.a.b", "s.x is defined", "s['upper']()", "l['append'] is defined", "l[true]", "l[1.0]", "d[[1]]", "d.__class__", "s.__class__.__mro__", "l.append", "l.append(1)", "d.update({'a': 2})", "d.pop('a')", "l.pop()", "l.sort()", "d.clear is defined", "d._private is defined", "l[0:2][0]",
        "s[2:3]", "l[1:][1:]", "{1: 'a', 'b': 2}[1]", "{1.0: 'a'}[1]", "{true: 'a'}[1]", "{none: 'x'}[none]", "{(1, 2): 'x'}[(1, 2)]", "{[1]: 2}", "d.b['c'][2]['d'][0]", "l[undefined_name]", "d[undefined_name]", "'abc'.upper().lower()[1]", "[[1, 2], [3]][0][1]", "'abc'[1]", "l.copy()", "l.count(2)", "l.index(3)", "l.index(9)", "(1, 2).count(1)", "l[::0]")

# ---- Methods ----

S = {"s": "  Hello, World!  \n", "u": "\u00c9t\u00e9 \u00df\u0130 \u4e2d", "c": "a,b,,c", "w": " one  two\tthree\n", "x": "xxabcxx", "think": "<think>\nreason\n</think>\n\nanswer"}
outputs("str", S, "s.strip()", "s.lstrip()", "s.rstrip()", "x.strip('x')", "x.lstrip('x')", "x.rstrip('xc')", "x.strip('')", "s.upper()", "s.lower()", "u.upper()", "u.lower()", "'hELLO wORLD'.title()", "\"they're bill's\".title()", "'hELLO'.capitalize()", "'hELLO'.swapcase()", "c.split(',')", "c.split(',', 1)", "c.split(',', maxsplit=2)", "c.rsplit(',', 1)", "c.rsplit(',')", "c.split('x')", "w.split()", "w.split(none, 1)", "w.rsplit(none, 1)", "w.split(' ')", "''.split()", "''.split(',')", "c.split('')",
        "think.split('</think>')[-1].lstrip('\\n')", "think.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')", "'a'.startswith('a')", "'abc'.startswith(('x', 'ab'))", "'abc'.endswith('bc')", "'abc'.endswith(('x',))", "'abc'.startswith('b', 1)", "'abc'.startswith('')", "'abc'.startswith('c', 5)", "'abc'.startswith('', 3)", "'abc'.endswith('b', 0, 2)", "'abc'.replace('b', 'xx')", "'aaa'.replace('a', 'b', 2)", "'abc'.replace('', '-')", "'abc'.replace('x', 'y')", "','.join(['a', 'b'])", "''.join('abc')", "','.join([1])", "'-'.join({'a': 1, 'b': 2})",
        "'abcabc'.find('c')", "'abc'.find('x')", "'abcabc'.rfind('c')", "'abcabc'.find('a', 1)", "'\u00e9a'.find('a')", "'abc'.index('x')", "'abc'.index('b')", "'abcabc'.rindex('b')", "'aXbXc'.count('X')", "'aaa'.count('aa')", "'abc'.count('')", "'abc'.removeprefix('ab')", "'abc'.removesuffix('bc')", "'abc'.removeprefix('x')", "'a-b-c'.partition('-')", "'a-b-c'.rpartition('-')", "'abc'.partition('-')", "'abc'.rpartition('-')", "'a\\nb\\r\\nc\\n'.splitlines()", "'a\\nb\\n'.splitlines(true)", "''.splitlines()", "'ab'.center(7)", "'ab'.center(5, '*')", "'abc'.center(6, '*')", "'ab'.ljust(5, '.')", "'ab'.rjust(5)", "'-5'.zfill(4)", "'5'.zfill(3)",
        "'a\\tb'.expandtabs(4)", "'abc'.isalpha()", "''.isalpha()", "'a1'.isalnum()", "'12'.isdigit()", "'1\u00b2'.isdigit()", "'1\u00b2'.isdecimal()", "'\u00bd'.isnumeric()", "'abc'.islower()", "'ABC'.isupper()", "'aB'.isupper()", "'1'.islower()", "' \\n'.isspace()", "'Ab Cd'.istitle()", "'ab'.istitle()", "'a_1'.isidentifier()", "'1a'.isidentifier()", "'a'.isascii()", "'\u00e9'.isascii()", "'a\\n'.isprintable()", "'\u00c9'.lower()", "'stra\u00dfe'.upper()", "'A'.casefold()",
        "'abc'.nothing()", "s.strip().split(', ')[1]", "'a'.join()", "'a'.strip(1)", "'x'.encode is defined", "'a'.split(sep=',')", "'{}'.format('a')", "'abc'.replace('b')", "(5).upper()", "'abc'.strip(none)", "'abc'.splitlines(keepends=true)", "c.split(',', -1)", "c.rsplit(',', 0)", "w.split(none, 0)", "'  a'.split(' ', 1)", "'\\u3000a\\u3000'.strip()", "'abc'.find('')", "'abc'.rfind('')", "'a.b'.split('.')")
outputs("format", {"d": {"a": 1}, "l": [1, 2]}, "'{} {}'.format(1, 'b')", "'{1} {0}'.format(1, 'b')", "'{a}'.format(a=2)", "'{{}}'.format()", "'{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')", "'{:*^7}'.format('x')", "'{:5}|'.format(3)", "'{:05d}'.format(42)", "'{:+d}'.format(3)", "'{:,}'.format(1234567)", "'{:_}'.format(1234567)", "'{:x} {:X} {:o} {:b} {:#x}'.format(255, 255, 8, 5, 255)", "'{:.2f}'.format(3.14159)", "'{:.3}'.format('abcdef')", "'{:.0f}'.format(2.5)", "'{:e}'.format(12345.678)", "'{:g}'.format(0.0001)", "'{:.1%}'.format(0.256)", "'{0[a]}'.format(d)", "'{0[1]}'.format(l)",
        "'{!r}'.format('a')", "'{0!s:>4}'.format(5)", "'{:{}}'.format('a', 5)", "'{:>{w}}'.format('a', w=4)", "'{}'.format()", "'{x}'.format(y=1)", "'{'.format()", "'}'.format(1)", "'{:d}'.format('a')", "'{:8.2f}|'.format(1.5)", "'{:<8}|'.format(1.5)", "'{:.3f}'.format(1)", "'{}'.format(none)", "'{}'.format([1, 'a'])", "'{:5}'.format(true)", "'{:>6}'.format(none)", "'{0}{0}'.format('ab')", "'{:010.3f}'.format(-3.14159)", "'{:,.2f}'.format(1234567.891)", "'{:=+6d}'.format(5)",
        "'%s' % 'a'", "'%s %s' % ('a', 1)", "'%d' % 3.7", "'%5d|%-5d|%05d' % (1, 2, 3)", "'%.2f' % 3.14159", "'%x %X %o' % (255, 255, 8)", "'%r' % 'a'", "'%%'  % ()", "'%(a)s' % {'a': 1}", "'%s' % none", "'%s' % [1]", "'%5s|%-5s|' % ('a', 'b')", "'%s' % ()", "'%s' % (1, 2)", "'%d' % 'a'", "'%+d % d' % (1, 2)", "'%e %g' % (1.5, 1.5)", "'%c' % 65", "'%.3s' % 'abcdef'", "'%*d' % (5, 3)", "'a' % ()", "'a' % 1", "'a' % {'x': 1}", "'%s %s'|format('a', 2)", "'%(x)s'|format(x=1)", "'%#x' % 255", "'%s' % true", "'%i' % 5", "'%z' % 5", "'%05.1f' % 2.55", "'%s' % {'a': 1}")
outputs("dict", {"d": {"b": 2, "a": 1, "c": {"x": [1]}}}, "d.keys()|list", "d.values()|list", "d.items()|list", "d.items()", "d|length", "d|list", "d.copy() == d", "dict(a=1, b=2)", "dict({'a': 1}, b=2)", "dict([('a', 1)])", "dict(d, z=1)|length", "d.get('c').x[0]", "d|items|list", "d|dictsort", "d.keys()|sort", "d.values() is iterable", "d.keys()|first", "d.a is integer", "'a' in d.keys()", "d.get()", "d|items|length", "{}.get('a', {}).get('b', 3)", "d.items()[0] is defined", "d.keys()|length")

# ---- Filters ----

F = {"l": [3, 1, 2], "s": "Hello World", "users": [{"n": "b", "a": 30, "x": {"y": 1}}, {"n": "A", "a": 25, "x": {"y": 2}}, {"n": "c", "a": 30}], "d": {"B": 1, "a": 3, "c": 2}, "tool": TOOL, "none_value": None}
outputs("filters", F, "s|upper", "s|lower", "s|title", "'hello-world foo_bar (baz) x\\'s'|title", "s|capitalize", "s|length", "l|length", "d|count", "5|length", "none|length", "undefined_name|length", "s|trim", "' x '|trim", "'xxaxx'|trim('x')", "5|trim", "none|trim", "undefined_name|trim", "s|replace('o', '0')", "s|replace('o', '0', 1)", "5|replace(5, 6)", "l|first", "l|last", "[]|first", "[]|last", "([]|first) is defined", "s|first", "s|last", "''|first", "d|first", "l|join", "l|join(', ')", "[1, none, true]|join('-')", "users|join(',', attribute='n')", "users|join(',', 'a')", "'abc'|join('-')", "l|join(d=':')",
        "l|sort", "l|sort(reverse=true)", "['b', 'A', 'c']|sort", "['b', 'A', 'c']|sort(case_sensitive=true)", "users|sort(attribute='n')|map(attribute='n')|list", "users|sort(attribute='a,n')|map(attribute='n')|join", "[1, 'a']|sort", "l|reverse|list", "s|reverse", "l|list", "s|list", "d|list", "5|list", "l|max", "l|min", "users|max(attribute='a')", "['a', 'B']|max", "[]|max is defined", "l|sum", "users|sum(attribute='a')", "[]|sum", "l|sum(start=10)", "[1.5, 2]|sum", "['a']|sum", "[1, 1, 2]|unique|list", "['a', 'A', 'b']|unique|list", "['a', 'A']|unique(case_sensitive=true)|list", "users|unique(attribute='a')|map(attribute='n')|list",
        "users|map(attribute='n')|list", "users|map(attribute='x.y')|list", "users|map(attribute='x.y', default=0)|list", "users|map(attribute='q')|list", "['a', 'b']|map('upper')|list", "['a', 'b']|map('replace', 'a', 'x')|list", "[1, 2]|map('string')|join('+')", "l|map('nothing')|list", "l|select('odd')|list", "l|reject('odd')|list", "[0, 1, '', 'a']|select|list", "[0, 1]|reject|list", "l|select('greaterthan', 1)|list", "l|select('in', [1, 2])|list", "users|selectattr('a', 'equalto', 30)|map(attribute='n')|list", "users|selectattr('a', '==', 30)|list|length", "users|selectattr('x')|list|length", "users|rejectattr('x')|list|length",
        "users|selectattr('x', 'defined')|list|length", "users|rejectattr('n', 'in', ['b'])|list|length", "users[:2]|selectattr('x.y', 'eq', 2)|map(attribute='n')|first", "users|groupby('a')|length", "users|groupby('a')|map(attribute='grouper')|list", "users|groupby('a')|map('last')|map('length')|list", "users|groupby('n')|map('first')|list", "l|batch(2)|list", "l|batch(2, 'x')|list", "range(7)|slice(3)|list", "range(7)|slice(3, 'x')|list", "d|dictsort", "d|dictsort(true)", "d|dictsort(by='value')", "d|dictsort(false, 'value', true)", "d|dictsort(by='x')", "undefined_name|default('x')", "none|default('x')", "none|default('x', true)", "''|default('x', boolean=true)", "undefined_name|d", "''|d('x')", "0|default(1, true)",
        "3.7|int", "'42'|int", "'42.9'|int", "'x'|int", "'x'|int(5)", "'0x1A'|int(base=16)", "'1A'|int(0, 16)", "'101'|int(base=2)", "none|int", "true|int", "' 12 '|int", "'1_0'|int", "[1]|int", "'3.5'|float", "'x'|float", "'x'|float(1.5)", "3|float", "'inf'|float", "'1e3'|float", "'nan'|float", "-3|abs", "-3.5|abs", "(-3)|abs", "42.55|round", "42.55|round(1)", "42.5|round", "43.5|round", "42|round", "2.675|round(2)", "42.55|round(1, 'floor')", "42.1|round(method='ceil')", "42.55|round(1, 'x')", "1234|round(-2)", "0.5|round|int", "5|string", "none|string", "[1]|string", "true|string|length", "'<a href=\"x\">&\\'</a>'|e", "'<b>'|escape|string|length", "'<b>'|safe", "'<p>a  <b>b</b></p> c'|striptags",
        "'a\\nb\\n\\nc'|indent", "'a\\nb\\n\\nc'|indent(2)", "'a\\nb'|indent(2, true)", "'a\\n\\nb'|indent(2, blank=true)", "'a\\nb'|indent('> ')", "'a\\nb\\n'|indent(2)", "5|indent", "'ab'|center(6)", "'foo bar baz qux'|truncate(9)", "'foo bar baz qux'|truncate(9, true)", "'foo bar baz qux'|truncate(11)", "'foo bar baz qux'|truncate(11, false, '...', 0)", "'one two  three-four'|wordcount", "s|wordcount", "{'a': 1}|attr('a') is defined", "s|attr('upper') is callable", "d|items|list", "undefined_name|items|list", "5|items|list", "s|nothing", "s|upper|lower|title", "s|upper ~ s|lower", "(s ~ '!')|upper", "s ~ '!'|upper", "-1|abs", "[1, 2]|first + 1", "l|sort|first", "'a'|upper == 'A'", "not l|length == 3",
        "d|map('upper')|list", "l|string|upper", "users|map('attr', 'n')|list", "range(3)|map('string')|list|join", "'x'|list|tojson", "[[2, 1], [1, 2]]|sort", "[[3], [1]]|map('first')|list", "[none, 1]|select('none')|list", "l|reject('equalto', 1)|sum", "['a','b']|map('upper')|map('lower')|join", "'a b'|replace(' ', '')|upper", "l|join(', ')|replace(',', ';')", "[3, 1]|sort|reverse|list", "['x']|map('length')|sum", "'é'|upper", "'%s'|format(1)", "{'a': [1, 2]}|pprint")
outputs("tojson", {"tool": TOOL, "s": "a\"b\\c\n\t\b\f\r\x01\x7f\u00e9\u4e2d\U0001F600</script>", "m": MESSAGES}, "tool|tojson", "tool|tojson(indent=2)", "tool|tojson(indent=4)", "s|tojson", "s|tojson(ensure_ascii=true)", "[1, 1.0, 1e100, true, none, 'x']|tojson", "{'b': 1, 'a': 2}|tojson", "{'b': 1, 'a': 2}|tojson(sort_keys=true)", "[]|tojson", "{}|tojson", "[[], {}]|tojson(indent=1)", "{'a': [1, 2]}|tojson(separators=(',', ':'))", "{'a': [1, 2]}|tojson(indent=2, separators=(',', ': '))", "{1: 'a', none: 2, true: 3, 1.5: 4}|tojson", "(1, 2)|tojson", "undefined_name|tojson", "m|tojson", "range(3)|tojson", "m|map(attribute='role')|tojson",
        "m|map(attribute='role')|list|tojson", "'x'|tojson|tojson", "tool.function.parameters|tojson(indent=none)", "{'a': 1}|tojson(indent='\\t')", "1e16|tojson", "'<>&'|tojson", "{'a': none}|tojson|length", "tool|tojson(true)", "[1, 2]|tojson(indent=0)", "(1e308 * 10)|tojson", "{(1, 2): 3}|tojson", "{'a': 'x'|upper}|tojson", "tojson", "namespace(a=1)|tojson", "{'a': {'b': {'c': []}}}|tojson(indent=3)")

outputs("markup", {"s": "<b>\"x\""}, "'a'|safe + s", "s + 'a'|safe", "s|safe + 'a<'", "s|e + s", "s|e|e", "s|escape|forceescape", "s|safe ~ s", "s|safe|e", "(s|safe)[0] + '<'", "(s|safe) is escaped", "s is escaped", "'a'|safe + s|tojson", "s|safe|string + '<'", "[s|safe, s]|join('<')", "s|safe == s", "(s|e)|length", "'<' + (s|safe|trim)", "'%s' % s|safe")

# ---- Tests ----

T = {"s": "a", "l": [1], "d": {"a": 1}, "n": None, "i": 3, "f": 1.5, "t": True}
outputs("tests", T, "s is string", "i is string", "l is sequence", "s is sequence", "d is sequence", "i is sequence", "d is mapping", "l is mapping", "l is iterable", "i is iterable", "s is iterable", "n is none", "s is none", "n is not none", "x is defined", "s is defined", "x is undefined", "x is not defined", "i is number", "t is number", "f is number", "s is number", "t is boolean", "i is boolean", "i is integer", "t is integer", "f is integer", "f is float", "i is float", "t is true", "1 is true", "false is false", "0 is false", "i is odd", "i is even", "4 is even", "i is divisibleby 3", "i is divisibleby(2)", "s is in ['a']", "s is not in ['a']", "s is in 'abc'", "i is eq 3", "i is equalto(3)", "i is ne 3",
        "i is gt 2", "i is greaterthan 3", "i is ge 3", "i is lt 4", "i is lessthan(2)", "i is le 3", "i is sameas 3", "n is sameas none", "l is sameas l", "t is sameas true", "1 is sameas true", "'abc' is lower", "'ABC' is upper", "'aB' is lower", "'' is lower", "s is callable", "s.upper is callable", "range is callable", "'upper' is filter", "'x' is filter", "'odd' is test", "'x' is test", "s is escaped", "x.y is defined", "d.a is defined", "d.b is defined", "d.b.c is defined", "not s is string", "s is string and i is number", "s is string or x", "s is string == true", "(s is string) == true", "l[0] is number", "d['a'] is integer", "s is nothing", "s is not string", "i is not divisibleby 2", "s is eq('a') and true", "x is string", "x is none",
        "x is mapping", "x is iterable", "x is callable", "x is sequence", "1.0 is odd", "s is odd", "d.keys() is sequence", "d.items() is iterable", "range(3) is sequence", "(l|map('string')) is iterable", "(l|map('string')) is sequence", "[] is sequence and [] is not string", "2 is lt 3", "i is in [1, 2]", "i is in(l)", "n is string", "[1, 2] is eq [1, 2]", "i is eq 3 if t else 0")

# ---- Statements ----

group("if",
      "{% if true %}a{% endif %}", "{% if false %}a{% else %}b{% endif %}", "{% if false %}a{% elif true %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif '' %}b{% elif [] %}c{% else %}d{% endif %}", "{% if undefined_name %}a{% else %}b{% endif %}", "{% if true: %}a{% endif %}",
      "{% if 1, 2 %}a{% endif %}", "{% if x is defined and x.y %}a{% else %}b{% endif %}", "{% if not x %}{% set x = 1 %}{% endif %}{{ x }}", "{% if true %}{% set x = 1 %}{% endif %}{{ x }}", ("{% if x %}{% set x = 2 %}{% endif %}{{ x }}", {"x": 1}),
      "{% if undefined_name.x %}a{% endif %}", "{% if false %}{{ undefined_name.x }}{% endif %}ok", "{% if false %}{{ 1 / 0 }}{% endif %}ok", ("{% if 'a' in d %}1{% endif %}{% if 'b' not in d %}2{% endif %}", {"d": {"a": 1}}))
group("for",
      "{% for x in [1, 2, 3] %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}empty{% endfor %}", "{% for x in undefined_name %}a{% else %}empty{% endfor %}", "{% for x in none %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}", "{% for c in 'h\u00e9' %}[{{ c }}]{% endfor %}", "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}", "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}",
      "{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}", "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [(1,)] %}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for x in [1, 2, 3, 4] if x is even %}{{ x }}{% endfor %}", "{% for x in [1, 2, 3] if x > 5 %}{{ x }}{% else %}none{% endfor %}",
      "{% for x in [1, 2, 3, 4, 5] if x != 3 %}{{ loop.index }}{{ loop.last }}{{ x }} {% endfor %}", "{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}", "{% for x in [1, 2, 3] %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}", "{% for x in [1, 2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
      "{% for x in [1, 2, 3] %}{{ loop.cycle('odd', 'even') }} {% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in [1, 2, 3, 4] %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in [1] %}{% break %}{% else %}e{% endfor %}", "{% for x in [1, 2] %}{% for y in 'ab' %}{{ x }}{{ y }}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
      "{% for x in [1, 2] %}{% for y in [1, 2, 3] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}", "{% for x in [1, 2] %}{% set y = x %}{% endfor %}{{ y is defined }}", "{% set y = 0 %}{% for x in [1, 2] %}{{ y }}{% set y = x %}{{ y }}{% endfor %}{{ y }}", "{% for x in [1] %}{% endfor %}{{ x is defined }}", "{% set x = 'o' %}{% for x in [1, 2] %}{{ x }}{% endfor %}{{ x }}", "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in range(5, 0, -2) %}{{ x }}{% endfor %}",
      "{% for x in range(100001) %}{% endfor %}", "{% for item in [{'n': 1, 'c': [{'n': 2, 'c': []}, {'n': 3, 'c': []}]}] recursive %}[{{ item.n }}{{ loop.depth }}{{ loop(item.c) }}]{% endfor %}", "{% for x in [1] %}{{ loop([2]) }}{% endfor %}", "{% for x in [3, 1, 2]|sort %}{{ x }}{% endfor %}", "{% for x in [1, 2, 3][1:] %}{{ x }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for x in [1, 2]|reverse %}{{ x }}{{ loop.last }}{% endfor %}",
      "{{ loop is defined }}", "{% for x in [1] %}{{ loop is iterable }}{% endfor %}", "{% for x in [1, 2] %}{% set outer = loop %}{% for y in [1] %}{{ outer.index }}{% endfor %}{% endfor %}", "{% set ns = namespace(found=false) %}{% for x in [1, 2, 3] if not ns.found %}{{ x }}{% if x == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}", "{% for x in [1, 2, 3] if x > 1 %}{{ loop.length }}{{ loop.revindex }}{{ x }} {% endfor %}", "{% for x in [1, 2, 3] %}{% if loop.first %}F{% endif %}{% if not loop.last %},{% endif %}{% endfor %}",
      "{% for x in [1, 2, 3] %}{{ loop.index is divisibleby 2 }}{% endfor %}", "{% set l = [1, 2]|map('string') %}{{ l|list }}{{ l|list }}", "{% set l = [0, 1, 2]|select %}{{ l|first }}{{ l|list }}{% if l %}T{% endif %}", "{% for x in [1, 2, 3]|select('odd') %}{{ x }}{{ loop.length }}{% endfor %}", "{% for a in [1, 2] %}{{ loop|length }}{% endfor %}", "{% for x in [[1, 2], [3]] %}{{ x|sum }}{% endfor %}", "{% for x in [1,2,3] %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}",
      "{% for i in range(2) %}{% for i in range(2) %}{{ i }}{% endfor %}{{ i }}{% endfor %}", "{% for x in [1, 2] %}{{ loop.nothing is defined }}{{ loop.index.x is defined }}{% endfor %}", "{% for x in [1] recursive %}{{ loop([]) }}.{% else %}e{% endfor %}")
group("set",
      "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set (x, y) = [1, 2] %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}aXa{% endset %}{{ x }}", "{% set x = 1 %}{% set x = x + 1 %}{{ x }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b is defined }}", "{% set ns = namespace(a=1, b='x') %}{% for i in [1, 2, 3] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace({'a': 5}) %}{{ ns.a }}",
      "{% set d = {} %}{% set d.a = 1 %}", "{% set x.a = 1 %}", "{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [1] %}{{ ns.a }}", "{% set ns = namespace(a=1) %}{{ ns['a'] }}", "{% set ns = namespace() %}{{ ns.x.y }}", "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}", "{% set x = none %}{{ x }}", "{% set a = b = 1 %}", "{% set x, y = [1] %}", "{% set x = 'a' if false %}{{ x is defined }}", "{% set ns.x = 1 %}", "{% set x %}\n  a\n{% endset %}[{{ x }}]", "{% set ns = namespace(_x=1) %}", "{% set ns = namespace() %}{% set ns._x = 1 %}", ("{% set messages = messages[1:] %}{{ messages }}", {"messages": [1, 2]}), ("{% set x = x or 'd' %}{{ x }}", {"x": ""}),
      "{% set ns = namespace(n=0) %}{% macro inc() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}{{ inc() }}{{ inc() }}", "{% set x = [1, 2] %}{% set y = x %}{{ x is sameas y }}", "{% set a, b, c = 'xyz' %}{{ a }}{{ c }}", "{% set ns = namespace(a=none) %}{% set ns.a = {'k': [1]} %}{{ ns.a.k[0] }}", "{% set x = namespace %}{{ x(a=2).a }}")
group("macro",
      "{% macro m(a, b='d') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
      "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{% set z = 1 %}{% endmacro %}{{ m() }}{{ z is defined }}", "{% macro m() %}  a  {% endmacro %}[{{ m() }}]{{ m()|trim }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('a') ~ m('b') }}{{ m('a')|upper }}{{ m('a') == 'a' }}{{ m('a') is string }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body{% endcall %}", "{% macro m() %}<{{ caller('x', 1) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}",
      "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}a{% endmacro %}{% call m() %}b{% endcall %}", "{% set y = 'o' %}{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{{ y }}{% endcall %}", "{{ m is defined }}{% macro m() %}{% endmacro %}{{ m is defined }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}", "{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], c=3) }}", "{{ undefined_function() }}", "{{ 5() }}", "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for x in [1] %}{{ m() }}{% endfor %}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
      "{% for x in [1, 2] %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(a, a2=[]) %}{{ a2|length }}{% endmacro %}{{ m(1) }}{{ m(1, [1]) }}", "{% macro m(d) %}{% for k, v in d.items() %}{{ k }}:{% if v is mapping %}{{ m(v) }}{% else %}{{ v }}{% endif %};{% endfor %}{% endmacro %}{{ m({'a': 1, 'b': {'c': 2}}) }}", "{% macro m(a) %}{{ m.name }}{% endmacro %}{{ m(1) }}", "{% macro m(a=undefined_name) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m() -%}\n  x\n{%- endmacro %}[{{ m() }}]", "{% macro m(a, b) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1, b=2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
      "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% set f = range %}{{ f(2)|list }}", "{% macro m(x) %}{{ x|tojson }}{% endmacro %}{{ m({'a': 1}) }}", "{% macro m() %}{% for x in varargs %}{{ x }},{% endfor %}{% endmacro %}{{ m(1, 2, 3) }}")
group("blocks",
      "{% filter upper %}a{{ 'b' }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}xa{% endfilter %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a is defined }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}", "{% generation %}a{{ 1 }}{% endgeneration %}b", "{%- generation %}\n x \n{%- endgeneration %}", "{% for x in [1, 2] %}{% generation %}{{ x }}{% endgeneration %}{% endfor %}", "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q is defined }}", "{% block a %}x{% endblock %}", "{% block a %}x{% endblock a %}", "{% autoescape false %}{{ '<' }}{% endautoescape %}",
      "{% print 1, 2 %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% do 1 %}", "{% filter trim %}\n  a\n{% endfilter %}", "{% for x in [1, 2, 3] %}{% filter upper %}a{% if x == 2 %}{% break %}{% endif %}{% endfilter %}{% endfor %}", "{% set x %}{% for i in [1] %}{{ i }}{% endfor %}{% endset %}{{ x|length }}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% call %}{% endcall %}", "{% set x | trim %}  a  {% endset %}[{{ x }}]", "{% with a = 1 %}{% with b = a + 1 %}{{ b }}{% endwith %}{% endwith %}")
group("functions",
      "{{ raise_exception('bad ' ~ 1) }}", "{% if false %}{{ raise_exception('x') }}{% endif %}ok", "{{ strftime_now('%Y-%m-%d') }}", "{{ strftime_now('%d %B %Y') }}", "{{ strftime_now('%A, %b %-d') }}", "{{ strftime_now is defined }}", "{{ range(3)|length }}", "{{ range(1, 4)|join }}", "{{ range() }}", "{{ range(0) is sequence }}", "{{ range('a') }}", "{{ range(1, 2, 0) }}", "{{ namespace(a=1).a }}", "{{ dict(a=1).a }}", "{{ raise_exception is defined and raise_exception is callable }}", "{{ dict() }}", "{{ range(3)[1] }}", "{{ range(10)|last }}", "{{ strftime_now('') }}|", "{{ 3 in range(5) }}", "{{ range(3) == range(3) }}", "{{ range(-1)|list }}", "{{ not_there }}|")
group("undefined",
      "{{ x }}", "{{ x.y }}", "{{ x[0] }}", "{{ x() }}", "{{ x|upper }}", "{{ x + 'a' }}", "{{ 'a' + x }}", "{{ x ~ 'a' }}", "{{ x|length }}", "{{ x == '' }}", "{{ x is none }}", "{{ -x }}", "{{ x > 1 }}", "{{ x|default('d') }}", "{{ x.y|default('d') }}", "{{ [x, x]|join(',') }}", "{{ x|list }}", "{{ x|first }}", "{{ not x }}", "{{ x if x else 'n' }}", "{{ x|int }}", "{{ x|string|length }}", "{{ 'a' in x }}", "{{ x in ['a'] }}", "{{ x in 'a' }}", "{{ {'a': x} }}", "{{ [1, 2][x] }}", "{{ 'a'.join(x) }}", "{{ x|join }}", "{{ x|sort }}", "{{ x|map('upper')|list }}", "{{ x|tojson }}", "{{ x|trim|length }}", "{{ x * 2 }}", "{% for i in x.y %}{% endfor %}", "{{ '%s' % x }}", "{{ x|float }}", "{{ x|abs }}", "{{ x|round }}", "{{ x != x }}", "{{ x|replace('a', 'b') }}|", "{{ x|e }}|", "{{ x|indent }}", "{{ x|items|list }}", "{{ x|dictsort }}", "{{ x|sum }}", "{{ x|unique|list }}", "{{ x|reverse|list }}", "{{ x|last }}", "{{ x|selectattr('a')|list }}")

# ---- Conversations, as chat templates write them ----

CHAT = {"messages": MESSAGES, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, "tools": None}
REASONING = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "<think>\nold\n</think>\n\na1"}, {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2", "reasoning_content": "new"}]
CALLS = [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}]}, {"role": "tool", "tool_call_id": "c1", "content": "5"}]
CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, multi=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.multi = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
            {%- set reasoning = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("This model only supports single tool-calls at once!") }}{%- endif %}
        {{- message.tool_calls[0].function.arguments | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
BRACKETS = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token}}
    {%- endif %}
{%- endfor %}
"""
PARTS = """{%- for message in messages -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{% if message['content'] is string -%}
{{ message['content'] | trim }}
{%- elif message['content'] is iterable -%}
{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}<image>{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
{%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}
<start_of_turn>model
{% endif -%}
"""
for i, messages in enumerate([MESSAGES, MESSAGES[1:], REASONING, CALLS, MESSAGES[:1], [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"}]}], REASONING[:3], [{"role": "assistant", "content": "first"}]]):
    for prompt in (True, False):
        variables = {**CHAT, "messages": messages, "add_generation_prompt": prompt}
        for name, template in (("chatml", CHATML), ("headers", HEADERS), ("brackets", BRACKETS), ("parts", PARTS)):
            CASES.append((f"chat_{name}/{i}{'p' if prompt else ''}", template, variables))
CASES.append(("chat_chatml/tools", CHATML, {**CHAT, "tools": [TOOL]}))
CASES.append(("chat_chatml/no_thinking", CHATML, {**CHAT, "enable_thinking": False}))
CASES.append(("chat_headers/date", HEADERS, {**CHAT, "date_string": "01 Jan 2025"}))
