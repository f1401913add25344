"""Run chat templates and tokenizers in a child process, with limits on time and memory.

Both come with models and are programs: a template can loop forever, and a tokenizer can multiply its text. So one child
runs them for all threads of this process. The kernel ends the child at a limit, whatever the child is doing, and the
next call starts another child. Processor time is limited, not time by the clock: a busy machine changes no result.
"""

import atexit
import hashlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grace_store.base.errors import ModelError
from grace_store.model.devices import in_words
from grace_store.model.inputs.bounded_child import MEMORY_CODE, OUTPUT_CODE, Told

SECONDS = 20
"""Processor time of a call, beside the time for its input."""
MEMORY_BYTES = 2 << 30
OUTPUT_BYTES = 64 << 20
_BYTES_PER_SECOND, _MEMORY_PER_BYTE, _OUTPUT_PER_BYTE = 100_000, 500, 200
"""What a call may use more for each byte of its input: about ten times as much as usual tokenizers use."""
_OF_LIMITS = (-signal.SIGXCPU, -signal.SIGABRT, MEMORY_CODE, OUTPUT_CODE)
"""Exit codes of a child that reached a limit; the tokenizers library aborts without memory."""
_MAIN = "from grace_store.model.inputs.bounded_child import serve; serve()"

_Program = tuple[bytes, bytes]
"""The key and the pickled form of a template's source, of a tokenizer, or of the name of a model folder."""


def _program(value: Any) -> _Program:
    return hashlib.sha256(pickled := pickle.dumps(value)).digest(), pickled


class LimitReached(ModelError):
    """A chat template or a tokenizer reached a limit."""

    def __init__(self, said: str) -> None:
        self.said = said
        super().__init__(f"{said}. A usual model never does this. Give another model.")

    def about(self, what: str) -> ModelError:
        """Return the error with a name for the input."""
        return ModelError(
            f"{self.said} for {what}. A usual model never does this: the model may be damaged or harmful. Give another "
            "model, or leave the sample out of the data."
        )


class TemplateFailed(Exception):
    """A chat template raised an error; the text is for users."""


class _Child:
    """The child process, which starts at the first call. Several threads may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None

    def call(self, who: str, task: str, program: _Program, *args: Any, num_bytes: int = 0) -> Any:
        """Return the result of a task, or raise its error; raise LimitReached if the child reaches a limit.

        num_bytes is the size of the files that the task reads.
        """
        key, pickled = program
        size = num_bytes + len(given := pickle.dumps(args))
        seconds, memory = SECONDS + size // _BYTES_PER_SECOND, MEMORY_BYTES + size * _MEMORY_PER_BYTE
        limits = seconds, memory, OUTPUT_BYTES + size * _OUTPUT_PER_BYTE
        told = code = None
        with self._lock:
            try:
                # Twice: somebody else may have ended the child. Each time first without the program, which is large.
                for sent in (None, pickled, None, pickled):
                    if told is None and code not in _OF_LIMITS:
                        try:
                            told = self._ask(task, key, sent, given, limits)
                        except (EOFError, OSError):
                            code = self._end()
            except BaseException:
                self.stop()  # the answer to an interrupted call must not be taken for the next one
                raise
        if told is None:
            raise LimitReached(f"{who} {_in_words(code or 0, *limits)}")
        is_made, result = told
        if not is_made:
            raise _error(*result)
        return result

    def _ask(self, *request: Any) -> Told | None:
        if self._connection is None:
            self._start()
        self._connection.send_bytes(pickle.dumps(request))
        told: Told | None = pickle.loads(self._connection.recv_bytes())
        return told

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        places = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
        # -P: no modules of the current folder. MALLOC_ARENA_MAX: arenas take from the limited address space. In a new
        # session, as only the parent handles Ctrl-C.
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _MAIN],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": places, "MALLOC_ARENA_MAX": "4"},
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise ModelError(f"The process for templates and tokenizers cannot start: {error.strerror}.") from error
        self._connection = Connection(ours.detach())

    def _end(self) -> int:
        """Wait until the child ends, and return its exit code."""
        process, connection, self._process, self._connection = self._process, self._connection, None, None
        if process is None:
            return 0
        connection.close()
        return process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._end()

    def forget(self) -> None:
        """Leave the child to the process that this process was forked from."""
        self._lock, self._process, self._connection = threading.Lock(), None, None


_CHILD = _Child()
atexit.register(_CHILD.stop)
os.register_at_fork(after_in_child=_CHILD.forget)


def _in_words(code: int, seconds: int, memory: int, output: int) -> str:
    if code == -signal.SIGXCPU:
        return f"needs more than {seconds} seconds of processor time"
    if code in (MEMORY_CODE, -signal.SIGABRT):
        return f"needs more than {memory / 2**30:.1f} GiB of memory"
    if code == OUTPUT_CODE:
        return f"makes more than {output / 2**20:.0f} MiB"
    return f"ends its process with {f'signal {-code}' if code < 0 else f'exit code {code}'}"


def render(source: str, conversations: Sequence[Mapping[str, Any]]) -> list[str | TemplateFailed]:
    """Return the text of each conversation, empty without messages, or the error in the template."""
    made = _CHILD.call("The chat template", "render", _program(source), conversations)
    return [result if is_made else TemplateFailed(_words(*result)) for is_made, result in made]


def text_of(rendered: str | TemplateFailed) -> str:
    if isinstance(rendered, TemplateFailed):
        raise rendered
    return rendered


def _error(kind: str, message: str) -> Exception:
    """Return an error of the child as an error whose class has the name of the original class."""
    error: Exception = type(kind, (Exception,), {})(message)
    return error


def _words(kind: str, message: str) -> str:
    return in_words(_error(kind, message)) if kind else message


class BoundedTokenizer:
    """A tokenizer of the library tokenizers, whose work on texts and tokens is done by the child."""

    def __init__(self, inner: Any) -> None:
        vars(self).update(inner=inner, program=None)

    def __getattr__(self, name: str) -> Any:
        if name in ("encode", "encode_batch", "decode"):
            return lambda *args, **kwargs: self._ask(name, args, kwargs)
        if name.startswith(("add_", "enable_", "no_")):  # methods that change the tokenizer
            vars(self)["program"] = None
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)
        vars(self)["program"] = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedTokenizer, (self.inner,)

    def _ask(self, *request: Any) -> Any:
        if self.program is None:
            vars(self)["program"] = _program((self.inner, self.inner.encode_special_tokens))
        return _CHILD.call("The tokenizer", "tokenizer", self.program, *request)


def try_tokenizer(folder: Path) -> None:
    """Read a folder's tokenizer in the child, because reading runs parts of it; raise only at a limit."""
    size = sum(entry.stat().st_size for entry in folder.glob("*token*") if entry.is_file())
    try:
        _CHILD.call("The tokenizer", "load", _program(str(folder)), num_bytes=size)
    except LimitReached as error:
        raise ModelError(f"{error.said} when it is read from {folder}. Give another model.") from None
    except Exception:  # noqa: BLE001 - the caller reads the tokenizer too, and gets the same error
        return
