"""Render chat templates as transformers does, but with limits on loops and on the size of texts.

Templates come with models and are programs. One limit counts loops and calls of macros. The other counts the characters
of all texts, intermediate texts too. So a template ends soon and needs little memory, and the same conversation always
has the same result.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sized
from functools import wraps
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import TemplateError, TemplateRuntimeError
from jinja2.visitor import NodeTransformer
from transformers.utils import chat_template_utils

from grace_store.model.devices import in_words

MAX_TURNS = 100_000
"""Largest number of iterations of all loops of a template for one conversation."""
MAX_CHARS = 1 << 26
"""Largest number of characters of all texts, intermediate texts too, for one conversation."""
_ITEM_CHARS = 8
"""Number of characters that an item of a list counts as."""
_MAX_BITS = 4096
_SIZED = frozenset(
    {"batch", "center", "indent", "slice", "tojson", "truncate", "wordwrap", "range", "generate_lorem_ipsum"}
)
"""Filters and functions with numbers that decide the size of their results."""
_COUNT, _MEASURE = "grace_store_count", "grace_store_measure"
_OWN_TEMPLATE: Callable[[str], Template] = chat_template_utils._compile_jinja_template


class BoundedTemplate:
    """A template that renders conversations as the tokenizer does. Several threads may use it."""

    def __init__(self, source: str) -> None:
        self._budget = _Budget()
        try:
            self._template = _compile(source, self._budget)
        except TemplateError:
            raise
        except Exception as error:
            raise TemplateRuntimeError(in_words(error)) from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return the text; raise TemplateError for any error in the template."""
        try:
            self._budget.turns, self._budget.chars = MAX_TURNS, MAX_CHARS
            return "".join(map(self._budget.measure, self._template.generate(variables)))
        except TemplateError:
            raise
        except Exception as error:
            raise TemplateRuntimeError(in_words(error)) from error


class _Budget(threading.local):
    """The remaining limits of a template, for each thread."""

    turns = MAX_TURNS
    chars = MAX_CHARS

    def count(self, _text: str = "") -> str:
        """Count one iteration of a loop."""
        self.turns -= 1
        if self.turns < 0:
            raise TemplateRuntimeError(f"the template's loops have more than {MAX_TURNS} iterations")
        return ""

    def measure(self, value: Any) -> Any:
        """Count the characters or items of a new value."""
        if isinstance(value, str):
            self.take(len(value))
        elif isinstance(value, list | tuple):
            self.take(_ITEM_CHARS * len(value))
        return value

    def take(self, size: int) -> None:
        self.check(size)
        self.chars -= size

    def check(self, size: int) -> None:
        if size > self.chars:
            raise TemplateRuntimeError(f"the template makes more than {MAX_CHARS} characters")


class _Counted(NodeTransformer):
    """A transformer of templates: loops and macros count their iterations, and joined texts their characters."""

    def visit(self, node: nodes.Node, *_args: Any, **_kwargs: Any) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            node.body.insert(0, nodes.Output([_filtered(nodes.Const(""), _COUNT, node.lineno)], lineno=node.lineno))
        return _filtered(node, _MEASURE, node.lineno) if isinstance(node, nodes.Concat) else node


def _filtered(node: nodes.Expr, name: str, lineno: int) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=lineno)


def _compile(source: str, budget: _Budget) -> Template:
    # The environment of an empty template: transformers' own compilation of this source would already run parts of it.
    environment: Any = _OWN_TEMPLATE("").environment.overlay()
    environment.intercepted_binops = frozenset({"+", "*", "**", "%"})
    environment.call_binop = _bounded_operators(environment.call_binop, budget)
    environment.call = _bounded_calls(environment.call, budget)
    # Filters with the context run only when the template runs.
    own = {_COUNT: lambda _, text: budget.count(text), _MEASURE: lambda _, value: budget.measure(value)}
    environment.filters = {
        **{name: _bounded(name, each, budget) for name, each in environment.filters.items()},
        **{name: pass_context(each) for name, each in own.items()},
    }
    tree = _Counted().visit(environment.parse(source))
    tree.set_environment(environment)
    return Template.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _bounded_operators(operate: Callable[..., Any], budget: _Budget) -> Callable[..., Any]:
    def bounded(context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _check_product(budget, left, right)
            _check_product(budget, right, left)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if right * left.bit_length() > _MAX_BITS:
                raise TemplateRuntimeError("the template computes too large a power")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return budget.measure(operate(context, operator, left, right))

    return bounded


def _check_product(budget: _Budget, value: Any, times: Any) -> None:
    if isinstance(value, Sized) and isinstance(times, int):
        budget.take((1 if isinstance(value, str) else _ITEM_CHARS) * len(value) * max(0, times))


def _check_format(text: str) -> None:
    if re.search(r"[0-9]{7,}|\*", text):  # a large number, or a number from an argument
        raise TemplateRuntimeError("the template formats with too large a width")


def _bounded_calls(call: Callable[..., Any], budget: _Budget) -> Callable[..., Any]:
    def bounded(context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps a text's format
        name, text = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        if isinstance(text, str):
            _check_numbers((*args, *kwargs.values()), budget)
            _check_texts(name, (text, *args, *kwargs.values()), budget)
        elif name in _SIZED:
            _check_numbers((*args, *kwargs.values()), budget)
        return budget.measure(call(context, function, *args, **kwargs))

    return bounded


def _bounded(name: str, function: Callable[..., Any], budget: _Budget) -> Callable[..., Any]:
    @wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        value, *given = args[1:] if hasattr(function, "jinja_pass_arg") else args
        if name in _SIZED:
            _check_numbers((*given, *kwargs.values()), budget)
        _check_texts(name, (value, *given, *kwargs.values()), budget)
        return budget.measure(function(*args, **kwargs))

    return bounded


def _check_texts(name: str, values: tuple[Any, ...], budget: _Budget) -> None:
    """Raise before a method of texts, or a filter of the same name, makes too large a result."""
    texts = [each for each in values if isinstance(each, str)]
    if name.startswith("format") and texts:
        _check_format(texts[0])
    if name == "replace" and len(texts) > 2:
        text, old, new = texts[:3]
        budget.take((text.count(old) if old else len(text) + 1) * len(new))


def _check_numbers(values: tuple[Any, ...], budget: _Budget) -> None:
    """Raise before a width, an indent or a number of items makes too large a result."""
    for value in values:
        if isinstance(value, int):
            budget.check(value)
