"""Chat templates: rendered as transformers renders them, and brought to an end where they would have none."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from jinja2.exceptions import TemplateError

from grace_store.base.errors import SettingError
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.model.inputs.bounded_template import MAX_TURNS, BoundedTemplate
from grace_store.model.inputs.tokens import _FIXED_DATE, Renderer
from grace_store.model.open_model import resolve_spec
from tests.tiny_models import CHATML, DATED, REWRITING, THINKING, TRIMMING, tiny_text_model, tiny_tokenizer
from tests.tiny_vision_models import GEMMA_TEMPLATE, LLAVA_TEMPLATE, ONEVISION_TEMPLATE, QWEN_TEMPLATE

TEXTS = [{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "  Step 1: {{ yes }} "}]
PARTS = [
    {"role": each["role"], "content": [{"type": "image"}, {"type": "text", "text": each["content"]}]} for each in TEXTS
]
ALL_KINDS = """{%- macro in_brackets(x) %}[{{ x ~ 'a' + 'b' * 3 }}{{ caller('k') if caller }}]{% endmacro %}
{% set ns = namespace(n=0, text='') %}
{% for message in messages if message.role != 'tool' %}{{ loop.index0 * 2 }}{% set ns.n = ns.n + 2 ** 3 %}
{% set ns.text = ns.text ~ message.role %}{{ in_brackets(message.content) }}{% if loop.first %}{% continue %}{% endif %}
{{ '%04d' % ns.n }}{{ '{:>5}'.format(ns.n) }}{{ message.role.replace('u', 'vv') | center(20) | upper }}
{% else %}none{% endfor %}{% call(q) in_brackets('z') %}{{ q }}{% endcall %}
{{ messages | map(attribute='role') | join(',') }}{{ messages | tojson(indent=2) }}{{ range(4) | batch(3, '-') | list }}
{{ bos_token }}{{ ns.text }}{% generation %}{{ 12345678901 | string }}{% endgeneration %}{{ strftime_now('%Y') }}"""


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        *((source, TEXTS) for source in (CHATML, TRIMMING, THINKING, DATED, REWRITING, ALL_KINDS)),
        *((source, PARTS) for source in (QWEN_TEMPLATE, LLAVA_TEMPLATE, ONEVISION_TEMPLATE, GEMMA_TEMPLATE)),
    ],
)
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_texts_are_those_of_the_tokenizer(source, messages, add_generation_prompt):
    tokenizer = tiny_tokenizer(chat_template=source)
    options = {"add_generation_prompt": add_generation_prompt, **_FIXED_DATE}
    expected = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    given = {"messages": messages, "tools": None, "documents": None, **tokenizer.special_tokens_map, **options}
    assert BoundedTemplate(source).render(given) == expected


GROWING = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = ns.x OP ns.x %}{% endfor %}{{ ns.x }}"
ENDLESS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ 'A' * 10**10 }}",
    "{{ [0] * 10**10 }}",
    "{{ 9 ** (9 ** 9) }}",
    GROWING.replace("START", "'aaaa'").replace("OP", "~"),
    GROWING.replace("START", "'aaaa'").replace("OP", "+"),
    GROWING.replace("START", "[1]").replace("OP", "+"),
    "{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}{{ x }}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ '*'.zfill(10**10) }}",
    "{{ 'a' | indent(10**10, true) }}",
    "{{ {'a': [1]} | tojson(indent=10**10) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10**10, 1) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ range(99999) | map('center', 99999) | join }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "{{ lipsum(n=10**9) }}",
]
BROKEN = [
    "{{ 1 / 0 }}",
    "{{ messages[0].nothing.there }}",
    "{{ raise_exception('no') }}",
    "{{",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ ''.join(3) }}",
]


@pytest.mark.parametrize("source", [*ENDLESS, *BROKEN], ids=lambda source: source[:40])
def test_whatever_goes_wrong_is_the_templates_error_and_takes_little_memory(source):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError):
        BoundedTemplate(source).render({"messages": TEXTS})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20, "kilobytes"


def test_a_limit_is_reached_at_the_same_place_every_time():
    just_enough = BoundedTemplate("{% for i in range(" + str(MAX_TURNS) + ") %}{% endfor %}.")
    one_more = BoundedTemplate(
        "{% for i in range(" + str(MAX_TURNS) + ") %}{% endfor %}{% for i in [1] %}{% endfor %}."
    )
    for _ in range(2):
        assert just_enough.render({}) == "."
        with pytest.raises(TemplateError, match=f"the template's loops have more than {MAX_TURNS} iterations"):
            one_more.render({})


@pytest.mark.parametrize("operation", [*ENDLESS[:6], *BROKEN[:4]], ids=lambda operation: operation[:40])
def test_a_model_with_such_a_template_is_refused_with_a_sentence(tmp_path: Path, operation):
    tokenizer = tiny_tokenizer(chat_template=operation + CHATML)
    with pytest.raises(SettingError, match=r"The chat template .*Use --rendering plain"):
        Renderer(tokenizer, "template", system=None, text_only=True, include_eos=False)
    folder = str(tiny_text_model("llama", tmp_path / "model", chat_template=operation + CHATML))
    assert resolve_spec(folder, ExtractSpec(rendering="plain"), RunOptions(device="cpu")).rendering == "plain"
