"""Renderings: the text, and that the segments lie where the bounds say."""

from __future__ import annotations

import pytest

from grace_store.base.errors import SettingError
from grace_store.base.states import Reason, Unusable
from grace_store.data.sample import ImageRef, Sample, Turn
from grace_store.model.inputs.tokens import RenderedSample, Renderer, resolve_rendering
from tests.tiny_models import CHATML, DATED, REWRITING, THINKING, TRIMMING, tiny_tokenizer

PROMPT = "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"


ASKED = (Turn("user", ("How many?",)),)


def sample(*segments: str, turns=ASKED) -> Sample:
    bounds = [0]
    for segment in segments:
        bounds.append(bounds[-1] + len(segment))
    return Sample("x", turns, "".join(segments), tuple(bounds))


def renderer(template=CHATML, rendering="template", *, system=None, text_only=False, include_eos=False) -> Renderer:
    tokenizer = tiny_tokenizer(chat_template=template)
    return Renderer(tokenizer, rendering, system=system, text_only=text_only, include_eos=include_eos)


def render(by: Renderer, given: Sample) -> RenderedSample:
    (made,) = by.render([given])
    if isinstance(made, Unusable):
        raise made
    return made


def cut(rendered) -> list[str]:
    return [rendered.text[a:b] for a, b in zip(rendered.bounds, rendered.bounds[1:], strict=False)]


def test_template_holds_the_response_where_the_bounds_say():
    rendered = render(renderer(), sample("Step one\n", "four", ". 4"))
    assert rendered.text == PROMPT + "Step one\nfour. 4<|im_end|>\n"
    assert cut(rendered) == ["Step one\n", "four", ". 4"]


@pytest.mark.parametrize("response", [("i", "m_end"), ("en", "d"), ("assist", "ant"), ("How ", "many?")])
def test_a_response_that_also_occurs_in_the_template_or_prompt(response):
    rendered = render(renderer(), sample(*response))
    assert rendered.bounds[0] == len(PROMPT)
    assert cut(rendered) == list(response)


def test_a_trimming_template_shifts_the_bounds():
    rendered = render(renderer(TRIMMING), sample("  \n Go", " on ", "end  \n"))
    assert rendered.text == PROMPT + "Go on end<|im_end|>\n"
    assert cut(rendered) == ["Go", " on ", "end"]


def test_a_template_that_puts_tags_before_the_response():
    rendered = render(renderer(THINKING), sample("Go ", "on"))
    assert rendered.text == PROMPT + "<think>\n\n</think>\n\nGo on<|im_end|>\n"
    assert cut(rendered) == ["Go ", "on"]


def test_a_response_that_begins_as_the_generation_prompt_ends():
    template = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    rendered = render(renderer(template), sample("<think>\nhm</think>", "4"))
    assert cut(rendered) == ["<think>\nhm</think>", "4"]


def test_a_rewriting_template_is_named_and_verbatim_helps():
    with pytest.raises(Unusable, match="--rendering verbatim") as caught:
        render(renderer(REWRITING), sample("Step 1 ", "4"))
    assert caught.value.reason == Reason.TEMPLATE_REWRITES
    rendered = render(renderer(REWRITING, "verbatim"), sample("Step 1 ", "4"))
    assert rendered.text == PROMPT + "Step 1 4<|im_end|>\n"


def test_a_rewritten_response_is_not_found_in_the_prompt():
    with pytest.raises(Unusable, match="changes the response"):
        render(renderer(REWRITING), sample("Step", " 4", turns=(Turn("user", ("Why Step 4 of it?",)),)))


def test_verbatim_keeps_what_a_template_would_trim():
    rendered = render(renderer(TRIMMING, "verbatim"), sample("  Go", " on \n"))
    assert rendered.text == PROMPT + "  Go on \n<|im_end|>\n"
    assert cut(rendered) == ["  Go", " on \n"]


def test_plain_joins_turns_by_lines():
    turns = (Turn("user", ("Hi",)), Turn("assistant", ("Yes?",)), Turn("user", ("How many?",)))
    rendered = render(renderer(None, "plain"), sample("Go ", "4", turns=turns))
    assert rendered.text == "Hi\nYes?\nHow many?\nGo 4"
    assert cut(rendered) == ["Go ", "4"]
    assert renderer(None, "plain").adds_special_tokens
    assert render(renderer(None, "plain", include_eos=True), sample("Go ", "4")).text == "How many?\nGo 4<|im_end|>"


def test_templates_are_told_a_fixed_date():
    assert render(renderer(DATED), sample("Go ", "4")).text.startswith("Today: 26 Jul 2024 26 Jul 2024\n")


def test_system_prompt_goes_before_samples_that_have_none():
    with_system = sample("a ", "b", turns=(Turn("system", ("Be kind.",)), Turn("user", ("Q",))))
    brief = render(renderer(system="Be brief."), sample("a ", "b"))
    assert brief.text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    assert "Be brief." not in render(renderer(system="Be brief."), with_system).text


def test_images_need_a_model_that_sees_or_leave():
    seen = sample("a ", "b", turns=(Turn("user", ("See ", ImageRef("a.png"), "this")),))
    with pytest.raises(Unusable, match="1 images") as caught:
        render(renderer(), seen)
    assert caught.value.reason == Reason.NEEDS_VISION
    assert "See this" in render(renderer(text_only=True), seen).text


def test_a_template_that_refuses_a_role():
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
    with pytest.raises(Unusable, match="no system role"):
        render(renderer(template, system="Be brief."), sample("a ", "b"))


def test_rendering_is_resolved_from_the_tokenizer():
    assert resolve_rendering(None, tiny_tokenizer()) == "template"
    assert resolve_rendering(None, tiny_tokenizer(chat_template=None)) == "plain"
    assert resolve_rendering("plain", tiny_tokenizer()) == "plain"
    with pytest.raises(SettingError, match="needs a chat template"):
        resolve_rendering("verbatim", tiny_tokenizer(chat_template=None))


def test_a_template_without_responses_is_refused():
    with pytest.raises(SettingError, match="leaves responses out"):
        renderer("{{ messages[0].content }}")
