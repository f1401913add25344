"""The engine of a Ray cluster: an actor for each GPU (or CPU) of its nodes. Nodes may come and go.

Actors open store, dataset and model and write units themselves. Only unit numbers and small messages pass through Ray.
A unit that is written twice has the same bytes, so a unit in doubt is run again.
"""

import platform
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from grace_store import __version__
from grace_store.base.errors import SettingError, WorkerDied
from grace_store.base.events import Listener, Note
from grace_store.base.settings import RunOptions
from grace_store.base.text import counted
from grace_store.run.engines.dispatch import ENDED, Dispatch, Worker
from grace_store.run.engines.engine import Engine, EngineOptions, Work
from grace_store.run.engines.ray_cluster import RayTasks, joined_cluster
from grace_store.run.engines.worker import QUEUE_UNITS, find_committed

POLL_SECONDS = 0.5
NO_ROOM_SECONDS = 15.0
"""How long to wait for a node to start a worker before reporting that no node has room."""
UNREACHABLE_SECONDS = 120.0
"""How long a worker may be unreachable before it counts as lost. Ray reports a dead node sooner."""
NOWHERE = "no node"
"""Place of an actor that Ray has not placed yet."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Actor(Worker):
    handle: Any
    sent: list[int] = field(default_factory=list)
    """The actor's units, in the order in which it runs them."""
    num_heard: int = 0
    is_told_to_end: bool = False
    unreachable_since: float | None = None


class _Run:
    """Actors of a Ray cluster, and the calls that they have not answered yet."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._job = work.job
        found = partial(find_committed, work.view)
        self._dispatch = Dispatch(QUEUE_UNITS, found, work.lease.confirm, work.listener, work.stop, deque(work.units))
        self._actors: list[_Actor] = []
        self._calls: dict[Any, tuple[_Actor, str, tuple[Any, ...]]] = {}
        """The actor, method and arguments of each call without an answer."""
        self._ray: Any = None
        self._actor_class: Any = None
        self._amounts: dict[str, float] = {}
        self._alone_since: float | None = None
        self._has_told_alone = False
        self._has_begun = False

    def finish(self) -> None:
        """Run the units; raise WorkerDied at the end if units could not be done."""
        from grace_store.model.devices import ANY_ACCELERATOR, count

        with joined_cluster(self._job.engine.address, count() or None) as self._ray:
            self._actor_class = self._ray.remote(_actor_class())
            # A cluster may get GPUs later; a single machine does not.
            has_gpus = bool(self._job.engine.address) or any(each["Resources"].get("GPU") for each in self._alive())
            self._amounts = needed_resources(self._job.options, has_gpus=has_gpus)
            on_cpus = {"device": "cpu", "threads": int(self._amounts.get("CPU", 0))}
            placed = {"device": ANY_ACCELERATOR} if "GPU" in self._amounts else on_cpus
            self._job = replace(self._job, options=self._job.options.model_copy(update=placed))
            try:
                while self._actors or (self._dispatch.waiting and not self._work.stop.is_set() and self._has_hope()):
                    self._start_actors()
                    self._take_answers()
                    self._dispatch.feed(list(self._actors), self._send, self._end)
                    self._wait_for_nodes()
            finally:
                for actor in list(self._actors):
                    self._drop(actor)
        self._dispatch.conclude()

    def _has_hope(self) -> bool:
        """Return whether workers may start somewhere: False if workers failed to start on every known node."""
        return bool(self._nodes()) or not self._dispatch.left_out

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that have the resources of a worker and are not left out."""
        return [
            node
            for node in self._alive()
            if node["NodeID"] not in self._dispatch.left_out
            and all(node["Resources"].get(name, 0.0) >= amount for name, amount in self._amounts.items())
        ]

    # ------------------------------------------------------------ actors come and go

    def _start_actors(self) -> None:
        """Ask for as many actors as the nodes have room for; Ray places an actor as soon as it can."""
        if self._work.stop.is_set() or not self._dispatch.waiting or not self._has_hope():
            return
        room = sum(
            int(min(node["Resources"][name] / amount for name, amount in self._amounts.items()))
            for node in self._nodes()
        )
        # Ask for one actor even without any room, so that a cluster that can grow adds a node.
        wanted = max(1, room) if self._job.engine.workers is None else self._job.engine.workers
        num_starting = sum(actor.rate is None for actor in self._actors)
        options: dict[str, Any] = {"max_concurrency": 4, "max_restarts": 0}
        options |= {f"num_{name.lower()}s": self._amounts.get(name, 0) for name in ("CPU", "GPU")}
        if avoided := self._dispatch.left_out - {NOWHERE}:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(avoided))})"}
        for _ in range(min(wanted - len(self._actors), len(self._dispatch.waiting) - num_starting)):
            actor = _Actor("A worker", NOWHERE, handle=self._actor_class.options(**options).remote())
            self._actors.append(actor)
            self._call(actor, "place")

    def _begin(self, actor: _Actor, place: dict[str, str]) -> None:
        """Let an actor load the model after it was placed, if it has the same versions as this process."""
        actor.place, actor.name = place["node"], f"The worker on {place['host']} (node {place['node'][:8]})"
        ours = {"grace-store": __version__, "Python": platform.python_version()}
        other = " and ".join(
            f"{name} {place[name]} instead of {mine}" for name, mine in ours.items() if place[name] != mine
        )
        if other:
            self._dispatch.left_out.add(actor.place)
            self._lose(actor, f"This worker has {other}. Different code must not write into one store.")
            return
        self._work.listener(Note(f"A worker starts on {place['host']}."))
        # Later actors do not time samples: the timed samples may have killed an earlier actor.
        probe = None if self._has_begun else self._job.probe_unit
        self._call(actor, "start", replace(self._job, probe_unit=probe).to_json())

    def _send(self, actor: _Actor, unit: int) -> None:
        # Each call sends all units of the actor, as calls may arrive in any order.
        actor.sent = [*(each for each in actor.sent if each in actor.in_flight), unit]
        self._call(actor, "put", actor.sent)

    def _end(self, actor: _Actor) -> None:
        if actor.place == NOWHERE or actor.rate is None:  # the actor has no unit yet; do not wait for it to load
            self._drop(actor)
        elif not actor.is_told_to_end:
            actor.is_told_to_end = True
            self._call(actor, "end")

    def _drop(self, actor: _Actor) -> None:
        if actor in self._actors:
            self._actors.remove(actor)
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] is not actor}
        self._ray.kill(actor.handle)

    def _lose(self, actor: _Actor, words: str, *, in_order: bool = False) -> None:
        """Remove an actor that ended or cannot be used, and put its units back into the queue."""
        is_machine_lost = actor.place != NOWHERE and actor.place not in {node["NodeID"] for node in self._alive()}
        num_workers = len(self._actors)
        self._drop(actor)
        if is_machine_lost and not in_order:
            self._dispatch.lost_with_machine(actor)
        else:
            self._dispatch.lost(actor, words=words, in_order=in_order, num_workers=num_workers)

    # ------------------------------------------------------------ calls and their answers

    def _call(self, actor: _Actor, method: str, *arguments: Any) -> None:
        self._calls[getattr(actor.handle, method).remote(*arguments)] = actor, method, arguments

    def _take_answers(self) -> None:
        if not self._calls:
            self._work.stop.wait(POLL_SECONDS)
            return
        refs = list(self._calls)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=POLL_SECONDS)
        if ready:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in ready:
            if call := self._calls.pop(ref, None):  # None if an earlier answer removed the actor
                self._take_answer(ref, *call)

    def _take_answer(self, ref: Any, actor: _Actor, method: str, arguments: tuple[Any, ...]) -> None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(ref)
        except errors.ActorUnavailableError:
            now = time.monotonic()
            actor.unreachable_since = actor.unreachable_since or now
            if now - actor.unreachable_since > UNREACHABLE_SECONDS:
                self._lose(actor, f"{actor.name} could not be reached for {UNREACHABLE_SECONDS:g} seconds.")
            else:
                self._call(actor, method, *arguments)
        except errors.RayActorError as error:
            self._lose(actor, f"{actor.name} died: {_first_line(error)}")
        except errors.RayError as error:
            self._lose(actor, f"{actor.name} failed: {_first_line(error)}")
        else:
            actor.unreachable_since = None
            self._understand(actor, method, answer)

    def _understand(self, actor: _Actor, method: str, answer: Any) -> None:
        if method == "place":
            self._begin(actor, answer)
        elif method == "start":
            self._call(actor, "messages", 0)
        elif method == "messages":
            actor.num_heard += len(answer)
            for message in answer:
                if message["event"] == ENDED:
                    if actor.rate is None and actor.failure:
                        actor.failure += " Every node must see the store, the data and the model under the same paths."
                    self._lose(actor, f"{actor.name} ended before its work was done.", in_order=message["in_order"])
                    return
                self._has_begun = True
                self._dispatch.heard(actor, message, [each for each in self._actors if each.place != NOWHERE])
            self._call(actor, "messages", actor.num_heard)

    def _wait_for_nodes(self) -> None:
        """Report when no node has had room for a worker for a while; raise WorkerDied after the time limit."""
        is_running = any(actor.place != NOWHERE for actor in self._actors)
        if is_running or self._work.stop.is_set() or not self._dispatch.waiting:
            self._alone_since, self._has_told_alone = None, False
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        lasted, limit = now - self._alone_since, self._job.engine.wait_seconds
        what = "GPU" if "GPU" in self._amounts else "CPU"
        units = counted(len(self._dispatch.waiting), "unit")
        if limit is not None and lasted > limit:
            waited = f"No node had a free {what} for {limit / 60:g} minutes"
            raise WorkerDied(f"{waited}, and {units} must still be done. Run the same command when a node is free.")
        has_nodes = bool(self._nodes())
        if not self._has_told_alone and (lasted > NO_ROOM_SECONDS or not has_nodes):
            self._has_told_alone = True
            hint = "" if what == "CPU" or has_nodes else " (--device cpu needs none)"
            text = f"No node of the cluster has a free {what}{hint}. Waiting for a node: {units} must still be done."
            self._work.listener(Note(text))


def needed_resources(options: RunOptions, *, has_gpus: bool) -> dict[str, float]:
    """Return the resources of a node that a worker takes: a GPU, or one CPU for each of its threads."""
    if ":" in options.device:
        raise SettingError(
            f"--device {options.device} cannot be used with Ray, because Ray hands out the devices. Leave the number "
            "out."
        )
    if options.device not in ("auto", "cpu") or (options.device == "auto" and has_gpus):
        return {"GPU": 1.0}
    return {"CPU": float(options.threads or 1)}


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _actor_class() -> type:
    """Return the class of actors. It is local, so Ray sends its code to nodes where grace-store is not installed."""

    class GraceStoreWorker:
        def place(self) -> dict[str, str]:
            import platform
            import socket

            import ray

            try:
                import grace_store

                version = grace_store.__version__
            except ImportError:
                version = "missing"
            return {
                "node": ray.get_runtime_context().get_node_id(),
                "host": socket.gethostname(),
                "grace-store": version,
                "Python": platform.python_version(),
            }

        def start(self, job: str) -> None:
            from grace_store.run.engines.ray_cluster import UnitRunner

            if not hasattr(self, "runner"):
                self.runner = UnitRunner(job)

        def put(self, units: list[int]) -> None:
            self.runner.put(units)

        def end(self) -> None:
            self.runner.end()

        def messages(self, start: int) -> Any:
            return self.runner.messages(start)

    return GraceStoreWorker


class _Ray(Engine):
    def run(self, work: Work) -> None:
        address = work.job.engine.address
        where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
        work.listener(Note(f"Starting workers on {where}."))
        _Run(work).finish()

    @contextmanager
    def tasks(self, options: EngineOptions, threads: int | None, listener: Listener) -> Iterator[RayTasks]:
        with joined_cluster(options.address) as ray:
            yield RayTasks(ray, threads, listener)


ENGINE = _Ray()
