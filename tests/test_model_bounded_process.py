"""Templates and tokenizers: the child gives what transformers gives here, and ends where they have no end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tokenizers import Regex, normalizers

from grace_store.base.errors import ModelError, SettingError
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.data.sample import Sample, Turn
from grace_store.model.inputs import bounded_process
from grace_store.model.inputs.bounded_process import BoundedTokenizer, LimitReached, TemplateFailed, render
from grace_store.model.inputs.encode_samples import SampleReader
from grace_store.model.inputs.tokens import _FIXED_DATE, Renderer
from grace_store.model.load.weights import describe_model, load
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


@pytest.fixture
def tight(monkeypatch):
    """Limits that a test reaches soon."""
    monkeypatch.setattr(bounded_process, "SECONDS", 2)
    monkeypatch.setattr(bounded_process, "MEMORY_BYTES", 1 << 28)


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
    assert render(source, [given, {**given, "messages": []}]) == [expected, ""]


@pytest.mark.parametrize("metaspace", [False, True])
def test_tokens_are_those_of_the_tokenizer(metaspace):
    tokenizer, bounded = (tiny_tokenizer(metaspace=metaspace) for _ in range(2))
    bounded._tokenizer = BoundedTokenizer(bounded.backend_tokenizer)
    texts = ["Hi there <|im_end|>", "  the sum\u00e9 \n\n is 4", "", "known " * 3000]
    asked = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    for options in ({}, {"padding": True}, {"truncation": True, "max_length": 7}, {"split_special_tokens": True}):
        assert dict(bounded(texts, **asked, **options)) == dict(tokenizer(texts, **asked, **options)), options
    ids = tokenizer(texts[1])["input_ids"]
    assert bounded.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids, skip_special_tokens=True)
    for each in (tokenizer, bounded):
        each.add_tokens(["sum\u00e9"])
    assert bounded(texts)["input_ids"] == tokenizer(texts)["input_ids"]


GROWING = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = ns.x OP ns.x %}{% endfor %}{{ ns.x }}"
BIG = "('a' * 10**6)"
LONG = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "integers": GROWING.replace("START", "9").replace("OP", "*") + "{{ ns.x % 7 }}",
}
LARGE = {
    "texts": GROWING.replace("START", "'aaaa'").replace("OP", "~"),
    "lists": GROWING.replace("START", "[1]").replace("OP", "+"),
    "product": "{{ 'A' * 10**10 }}",
    "indent": "{{ 'a\\n' * 10**6 | int }}{{ ('a\\n' * 10**5) | indent(10**6) }}",
    "translate": "{{ " + BIG + ".translate({97: " + BIG + "}) }}",
    "lipsum": "{{ lipsum(n=10**5, max=10**4) }}",
    "format": "{{ '%*d' % (10**10, 1) }}",
    "output": "{% for i in range(1000) %}{{ 'a' * 10**5 }}{% endfor %}",
}
BROKEN = [
    "{{ 1 / 0 }}",
    "{{ messages[0].nothing.there }}",
    "{{ raise_exception('no') }}",
    "{{",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ ''.join(3) }}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in range(10**9) %}x{% endfor %}",
]


@pytest.mark.parametrize("name", [*LONG, *LARGE])
@pytest.mark.usefixtures("tight")
def test_a_template_without_end_ends_at_a_limit_and_takes_little_memory_here(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LimitReached, match=r"The chat template (needs more than|makes more than)"):
        render({**LONG, **LARGE}[name], [{"messages": TEXTS}])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18, "kilobytes"
    assert render(CHATML, [{"messages": TEXTS}])[0] != "", "the next call has another child"


@pytest.mark.parametrize("source", BROKEN, ids=lambda source: source[:40])
def test_an_error_of_a_template_is_told_for_its_conversation(source):
    (failed,) = render(source, [{"messages": TEXTS}])
    assert isinstance(failed, TemplateFailed)


@pytest.mark.parametrize("operation", [LONG["integers"], LARGE["product"], *BROKEN[:4]], ids=lambda text: text[:40])
@pytest.mark.usefixtures("tight")
def test_a_model_with_such_a_template_is_refused_with_a_sentence(tmp_path: Path, operation):
    tokenizer = tiny_tokenizer(chat_template=operation + CHATML)
    with pytest.raises(SettingError, match=r"The chat template .*Use --rendering plain"):
        Renderer(tokenizer, "template", system=None, text_only=True, include_eos=False)
    folder = str(tiny_text_model("llama", tmp_path / "model", chat_template=operation + CHATML))
    assert resolve_spec(folder, ExtractSpec(rendering="plain"), RunOptions(device="cpu")).rendering == "plain"


def test_a_template_that_fails_only_on_a_question_is_refused_with_a_sentence():
    template = "{% if messages | length == 1 %}{{ 1 / 0 }}{% endif %}" + CHATML
    options = {"system": None, "text_only": False, "include_eos": False, "image_mark": "<image>"}
    renderer = Renderer(tiny_tokenizer(chat_template=template), "template", **options)
    with pytest.raises(SettingError, match=r"The chat template .*ZeroDivisionError.*Use --rendering plain"):
        _ = renderer.adds_special_tokens


def multiplying(folder: Path, times: int, word: str = "x") -> str:
    """Write a model whose tokenizer doubles a word several times; return its folder."""
    path = tiny_text_model("llama", folder) / "tokenizer.json"
    state = json.loads(path.read_text())
    double = normalizers.Replace(Regex(word), word * 2)
    state["normalizer"] = {"type": "Sequence", "normalizers": [json.loads(double.__getstate__())] * times}
    path.write_text(json.dumps(state))
    return str(folder)


def sample(name: str, text: str) -> Sample:
    return Sample(name, (Turn("user", ("How many?",)),), f"{text} is 4. So 4", (0, len(text) + 6, len(text) + 11))


@pytest.mark.usefixtures("tight")
def test_a_tokenizer_that_multiplies_a_text_ends_the_run_with_the_samples_name(tmp_path: Path):
    folder = multiplying(tmp_path / "model", 40)
    spec = resolve_spec(folder, ExtractSpec(), RunOptions(device="cpu"))
    loaded = load(describe_model(folder), "float32", "eager", "cpu")
    reader = SampleReader(loaded, spec, loaded.identity.vocab_size)
    assert [*reader.read([sample("first", "It"), sample("second", "The sum")]).tokens] == [0, 1]
    with pytest.raises(
        ModelError, match=r"The tokenizer needs more than .* for the sample the-one\. .*leave the sample"
    ):
        reader.read([sample("first", "It"), sample("the-one", "xx"), sample("third", "The sum")])


@pytest.mark.usefixtures("tight")
def test_a_tokenizer_that_multiplies_its_own_tokens_is_refused_when_it_is_read(tmp_path: Path):
    folder = multiplying(tmp_path / "model", 40)
    path = Path(folder) / "tokenizer.json"
    state = json.loads(path.read_text())
    added = {"content": "x", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    state["added_tokens"].append({**added, "id": len(state["model"]["vocab"]), "special": False})
    path.write_text(json.dumps(state))
    with pytest.raises(ModelError, match=r"The tokenizer needs more than .* when it is read from .*Give another model"):
        describe_model(folder)


def test_a_child_that_somebody_ends_is_replaced():
    given = [{"messages": TEXTS}]
    expected = render(CHATML, given)
    os.kill(bounded_process._CHILD._process.pid, signal.SIGKILL)
    assert render(CHATML, given) == expected


def test_threads_share_a_child_and_get_their_own_texts():
    found: dict[int, list[str | TemplateFailed]] = {}

    def ask(number: int) -> None:
        given = [{"messages": [{"role": "user", "content": f"{number} {i}"}]} for i in range(20)]
        found[number] = render("{{ messages[0].content }}", given)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number} {i}" for i in range(20)] for number in range(8)}


@pytest.mark.parametrize("how", ["end", "fork", "interrupt"])
def test_no_child_stays_and_no_answer_is_taken_for_another(how):
    program = {
        "end": "pass",
        "fork": "pid = os.fork()\nprint(ask('b'), flush=True)\npid and os.waitpid(pid, 0) or os._exit(0)",
        "interrupt": (
            "endless = '{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}'\n"
            "try: signal.setitimer(signal.ITIMER_REAL, 0.5), b.render(endless, given('b'))\n"
            "except KeyboardInterrupt: print(ask('c'))"
        ),
    }[how]
    source = (
        "import os, signal\n"
        "from grace_store.model.inputs import bounded_process as b\n"
        "def stop(*_): raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, stop)\n"
        "def given(text): return [{'messages': [text]}]\n"
        "def ask(text): return b.render('{{ messages[0] }}', given(text))[0]\n"
        f"print(ask('a'), b._CHILD._process.pid, flush=True)\n{program}\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    (first, child), rest = done.stdout.split()[:2], done.stdout.split()[2:]
    assert (first, rest) == ("a", {"end": [], "fork": ["b", "b"], "interrupt": ["c"]}[how])
    assert not Path(f"/proc/{child}").exists()
