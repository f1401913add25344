"""Join a Ray cluster, or start one of this machine alone, without its chatter."""

import importlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from grace_store.base.errors import SettingError, WorkerDied

CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 1 << 28
"""Of a cluster of this machine alone: units are written by the workers themselves, so only small things pass."""
_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TALKING_THREAD = "ray_listen_error_messages"


@contextmanager
def joined_cluster(address: str | None, num_devices: int | None = None) -> Iterator[Any]:
    """Yield ray, connected to the cluster at an address; without one, to a cluster of this machine for the time.

    num_devices: the accelerators of this machine, for those that Ray does not find by itself.
    """
    _prepare_environment(is_local=address is None)
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    with redirect_stdout(cast(TextIO, _WithoutRay(sys.stdout))):
        try:
            with _own_signal_handlers():
                _connect(ray, address, num_devices)
            yield ray
        finally:
            ray.shutdown()


def _prepare_environment(*, is_local: bool) -> None:
    """Set what Ray reads when it is imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not is_local or "ray" in sys.modules:
        return
    # Its name speaks of other systems, but it is what makes Ray listen on the loopback interface and nowhere else.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if not any(name in os.environ for name in _AUTHENTICATION):
        # Else Ray makes a token by itself, and leaves it in the user's home.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def _connect(ray: Any, address: str | None, num_devices: int | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        try:
            own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES, "num_gpus": num_devices}
            ray.init(address="local", **own, **quiet)
        except Exception as error:  # noqa: BLE001 - Ray raises nothing more special, when its processes are too slow
            raise WorkerDied(f"Ray did not start on this machine: {_in_one_line(error)} Try again.") from None
        return
    _check_address(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise SettingError(
            f"No Ray cluster can be joined at --address {address}: {_in_one_line(error)} Start one with "
            "`ray start --head`, and give `auto` on one of its nodes, or the host and port that it names."
        ) from None


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_address(address: str) -> None:
    """Raise SettingError unless something listens there: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise SettingError(f"--address {address} is neither auto nor HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise SettingError(f"Nothing answers at --address {address} ({error}): is it the cluster's head?") from None


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep this process's answers to signals, which Ray replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _WithoutRay:
    """Standard output without what Ray says there when workers or nodes die, which engines tell by themselves."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name == _TALKING_THREAD else self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)
