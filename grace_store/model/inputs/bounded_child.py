"""The child of bounded_process: it runs chat templates and tokenizers until the kernel or its parent ends it.

Does without torch: nothing here needs torch, and its import takes long.
"""

import importlib
import math
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

MEMORY_CODE, OUTPUT_CODE = 3, 4
"""Exit codes: too much memory, too large an answer."""
_KEPT = 8
"""Number of templates and tokenizers that stay in memory."""
_MOST_WORDS = 2000

Told = tuple[bool, Any]
"""(True, result) or (False, (class of the error, message))."""


def serve() -> NoReturn:
    """Answer the calls of the parent until it ends."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    importlib.import_module("transformers.models.auto.tokenization_auto")  # before the first limit
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(os.dup(0))
    programs: dict[bytes, Any] = {}
    while True:
        try:
            task, key, program, given, limits = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            _limit(*limits[:2])
            if program is not None:
                if len(programs) >= _KEPT:
                    del programs[next(iter(programs))]
                programs[key] = pickle.loads(program)
            is_known = key in programs  # else the parent must send the program
            reply = pickle.dumps(_told(_TASKS[task], programs[key], *pickle.loads(given)) if is_known else None)
        except MemoryError:
            os._exit(MEMORY_CODE)
        if len(reply) > limits[2]:
            os._exit(OUTPUT_CODE)
        connection.send_bytes(reply)


def _limit(seconds: int, num_bytes: int) -> None:
    """Let the kernel end this process after more processor time, and refuse it more memory."""
    most = {resource.RLIMIT_CPU: math.ceil(time.process_time()) + seconds}
    with suppress(OSError):  # only Linux says how much memory is in use
        pages = Path("/proc/self/statm").read_text().split()
        used = {resource.RLIMIT_AS: pages[0], resource.RLIMIT_DATA: pages[5]}
        most |= {kind: int(number) * resource.getpagesize() + num_bytes for kind, number in used.items()}
    for kind, limit in most.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _told(function: Callable[..., Any], *args: Any) -> Told:
    """Return the result of a function, or its error in words."""
    try:
        return True, function(*args)
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of the tokenizers library is no Exception
        is_of_template = type(error).__module__ == "jinja2.exceptions"  # its message needs no class
        return False, ("" if is_of_template else type(error).__name__, str(error)[:_MOST_WORDS])


def _render(source: str, conversations: Sequence[Mapping[str, Any]]) -> list[Told]:
    from transformers.utils import chat_template_utils

    def render(variables: Mapping[str, Any]) -> str:
        # The compiled template is cached.
        return str(chat_template_utils._compile_jinja_template(source).render(variables))

    return [_told(render, each) if each["messages"] else (True, "") for each in conversations]


def _tokenizer(program: tuple[Any, bool], method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tokenizer, encode_special_tokens = program
    tokenizer.encode_special_tokens = encode_special_tokens  # not pickled with the tokenizer
    return getattr(tokenizer, method)(*args, **kwargs)


def _load(folder: str) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


_TASKS: dict[str, Callable[..., Any]] = {"render": _render, "tokenizer": _tokenizer, "load": _load}
"""Functions of a program (a template's source, a tokenizer, a model folder) and further arguments."""
