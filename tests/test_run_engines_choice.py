"""Which processes do the work, from what was asked and what the environment says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from grace_store.base.errors import SettingError
from grace_store.base.settings import RunOptions
from grace_store.model import devices
from grace_store.run.engines.engine import EngineOptions, choose_engine
from grace_store.run.engines.ray import needed_resources


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The GPUs that are visible; a test may add some."""
    visible: list[str] = []
    monkeypatch.setattr(devices, "accelerator", lambda: "cuda" if visible else None)
    monkeypatch.setattr(devices, "count", lambda: len(visible))
    monkeypatch.setattr(devices, "visible_devices", lambda environment: visible)
    return visible


def chosen(
    workers: int | None = None, shard: tuple[int, int] | None = None, **environment: str
) -> tuple[RunOptions, tuple[int, int], EngineOptions]:
    return choose_engine(RunOptions(), workers, shard, environment)


def test_one_device_means_this_process(gpus: list[str]) -> None:
    assert chosen()[2].devices == ()
    gpus.append("0")
    assert chosen()[2].devices == ()


def test_several_gpus_mean_a_worker_each(gpus: list[str]) -> None:
    gpus += ["0", "1", "4"]
    assert chosen()[2].devices == ("0", "1", "4")
    assert chosen(workers=2)[2].devices == ("0", "1")


def test_workers_without_gpus_share_the_cpu(gpus: list[str]) -> None:
    assert chosen(workers=3)[2].devices == ("cpu",) * 3


def test_more_workers_than_gpus_are_refused(gpus: list[str]) -> None:
    gpus += ["0", "1"]
    with pytest.raises(SettingError, match="visible accelerators is 2"):
        chosen(workers=3)


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1"},
        {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1"},
    ],
)
def test_a_rank_is_a_shard_on_its_own_gpu(gpus: list[str], environment: Mapping[str, str]) -> None:
    gpus += ["0", "1"]
    options, shard, engine = chosen(**environment)
    assert (shard, engine.name, options.device) == ((5, 16), "here", "cuda:1")


def test_a_rank_without_gpu_stays_on_the_cpu(gpus: list[str]) -> None:
    assert chosen(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")[0].device == "auto"


def test_a_single_rank_is_no_shard(gpus: list[str]) -> None:
    assert chosen(RANK="0", WORLD_SIZE="1")[1] == (0, 1)
    assert chosen(SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1")[1] == (0, 1)


def test_a_batch_script_of_slurm_is_no_rank(gpus: list[str]) -> None:
    assert chosen(SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_LOCALID="0")[1] == (0, 1)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_more_ranks_than_gpus_share_them(gpus: list[str], device: str) -> None:
    gpus += ["0", "1"]
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}
    assert choose_engine(RunOptions(device=device), None, None, environment)[0].device == "cuda:1"


def test_a_named_device_takes_one_worker(gpus: list[str]) -> None:
    gpus += ["0", "1"]
    assert choose_engine(RunOptions(device="cuda:1"), None, None, {})[2].name == "here"
    with pytest.raises(SettingError, match="one device runs one worker"):
        choose_engine(RunOptions(device="cuda:1"), 2, None, {})
    assert choose_engine(RunOptions(device="cpu"), 2, None, {})[2].devices == ("cpu", "cpu")


def test_workers_have_no_meaning_for_a_rank(gpus: list[str]) -> None:
    with pytest.raises(SettingError, match="each rank is one worker"):
        chosen(workers=2, RANK="1", WORLD_SIZE="2")


def test_a_given_shard_wins_over_ranks(gpus: list[str]) -> None:
    assert chosen(shard=(3, 7), RANK="1", WORLD_SIZE="2")[1] == (3, 7)


def test_a_cluster_does_the_work_whatever_is_here(gpus: list[str]) -> None:
    gpus += ["0", "1"]
    cluster = EngineOptions("ray", address="auto", workers=64)
    _, shard, engine = choose_engine(RunOptions(), 64, (1, 2), {"RANK": "0", "WORLD_SIZE": "1"}, cluster)
    assert (engine, shard) == (cluster, (1, 2))


def test_only_one_process_hands_out_the_units_of_a_cluster(gpus: list[str]) -> None:
    with pytest.raises(SettingError, match="Start the command once"):
        choose_engine(RunOptions(), None, None, {"RANK": "1", "WORLD_SIZE": "2"}, EngineOptions("ray", address="auto"))


@pytest.mark.parametrize(
    ("device", "has_gpus", "amounts"),
    [
        ("auto", True, {"GPU": 1.0}),
        ("auto", False, {"CPU": 3.0}),
        ("cpu", True, {"CPU": 3.0}),
        ("cuda", False, {"GPU": 1.0}),
    ],
)
def test_a_worker_of_a_cluster_takes_a_gpu_or_as_many_cpus_as_it_has_threads(device, has_gpus, amounts) -> None:
    assert needed_resources(RunOptions(device=device, threads=3), has_gpus=has_gpus) == amounts


def test_ray_hands_out_devices_itself() -> None:
    with pytest.raises(SettingError, match="Ray hands out the devices"):
        needed_resources(RunOptions(device="cuda:1"), has_gpus=True)
