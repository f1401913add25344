"""What lies in jobs/ is loaded and run here, as far as a machine without GPUs and Slurm can."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from safetensors.torch import load_file

from grace_store.base.settings import DataSpec
from grace_store.cli.main import main
from grace_store.run.plan import plan
from grace_store.store.opened import Store
from grace_store.train.warmup import warmup
from tests.warmups import make_inputs, make_job

JOBS = Path(__file__).parent.parent / "jobs"
SCRIPTS = sorted([*JOBS.rglob("*.sh"), *JOBS.rglob("*.sbatch")])
PAPER = sorted((JOBS / "paper").glob("*.toml"))
WARMUP_OPTIONS = (
    "--checkpoints 1 --ratio 0.4 --batch-size 4 --learning-rate 5e-3 --heldout 4 --dtype float32 --threads 1 "
    "--device cpu"
)
EXTRACT_OPTIONS = "--dtype float32 --threads 1 --device cpu"


def parse(command: str, *arguments: str) -> dict[str, object]:
    """Put arguments through the real option parser of a command, and return its parameters."""
    with click.Context(main) as ctx:
        found = main.get_command(ctx, command)
        assert found is not None
        return found.make_context(command, list(arguments), parent=ctx).params


@pytest.mark.parametrize("config", PAPER, ids=lambda path: path.stem)
def test_every_config_is_understood(config):
    needed = {"plan": ["s", "data.jsonl"], "warmup": ["--out", "w"], "extract": ["s"]}
    found = re.match(r"# grace-store (\w+) .*--config (\S+)", config.read_text())
    assert found is not None
    assert found[2] == f"jobs/paper/{config.name}"
    parameters = parse(found[1], *needed[found[1]], "--config", str(config))
    plain = parse(found[1], *needed[found[1]])
    assert parameters.keys() == plain.keys()
    assert parameters != plain


def test_the_papers_numbers():
    """Warm-up ratio, adapter and rates as in the paper's appendix, which is ms-swift's recipe."""
    planned = parse("plan", "s", "d", "--config", str(JOBS / "paper" / "plan.toml"))
    assert (planned["format"], planned["min_steps"]) == ("mmathcot", 8)
    recipe = parse("warmup", "--out", "w", "--config", str(JOBS / "paper" / "warmup.toml"))
    names = ("ratio", "rank", "alpha", "learning_rate", "warmup_ratio", "num_epochs", "dtype", "max_length")
    assert [recipe[name] for name in names] == ["0.05", 8, 32.0, 1e-4, 0.05, 1, "bfloat16", 4096]
    assert recipe["checkpoints"] == ("0.25", "0.5", "0.75", "1")
    assert recipe["gradient_checkpointing"]
    extraction = parse("extract", "s", "--config", str(JOBS / "paper" / "extract.toml"))
    assert recipe["images_as"] == extraction["images_as"] == "ms-swift"


def test_the_baselines_numbers():
    """LESS and ICONS as their authors ran them; what is compared is projected by one matrix."""
    pool, targets, icons = (
        parse("extract", "s", "--config", str(JOBS / "paper" / f"{name}.toml"))
        for name in ("less_pool", "less_targets", "icons")
    )
    assert (pool["preconditioner"], pool["bias_correction"], pool["dimension"]) == ("adam", False, 8192)
    assert (icons["preconditioner"], icons["dimension"]) == ("none", 5120)
    for each in (pool, targets, icons):
        assert (each["kind"], each["per"], each["projection"], each["normalise"]) == (
            "gradient", "sample", "rademacher", True,
        )  # fmt: skip
    differing = {name for name in pool if pool[name] != targets[name]}
    assert differing - {"config"} == {"preconditioner", "bias_correction"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_bash_and_says_what_it_needs(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK) or script.suffix == ".sbatch"
    text = script.read_text()
    assert "set -euo pipefail" in text
    bare = {name: value for name, value in os.environ.items() if name not in ("MODEL", "DATA", "STORE", "WARMUP")}
    failed = subprocess.run(["bash", script], env=bare, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "MODEL: say" in failed.stderr
    used = set(re.findall(r"\$\{?([A-Z_]+)", text)) - {"SLURM_SUBMIT_DIR", "PWD", "BASH_SOURCE", "TUNER_OPTION"}
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    own = set(re.findall(r"^\s*(?:export )?([A-Z_]+)=", text, re.MULTILINE))
    undocumented = {name for name in used - own if name not in comments and not name.startswith("SLURM_")}
    assert undocumented == set()


@pytest.fixture
def environment(tmp_path, repository) -> dict[str, str]:
    """What a launcher is told, with a tiny model, a small dataset and two processes on the CPU."""
    model, data = make_inputs(tmp_path)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RANK", "WORLD_SIZE"))},
        "MODEL": str(model),
        "DATA": str(data),
        "STORE": str(tmp_path / "s.zarr"),
        "WARMUP": str(tmp_path / "w"),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(repository),
        "NUM_GPUS": "2",
        "OMP_NUM_THREADS": "1",
        "PLAN_OPTIONS": "--format explicit --min-steps 2 --unit-samples 8",
        "WARMUP_OPTIONS": WARMUP_OPTIONS,
        "EXTRACT_OPTIONS": EXTRACT_OPTIONS,
    }


def launch(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(JOBS / "launch" / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_local_launcher_runs_the_whole_of_it_with_two_processes(environment, tmp_path):
    launch("local_8gpu.sh", environment)
    store = Store.open(environment["STORE"])
    assert store.signal_names == ["checkpoint-6"]
    assert store.signal("checkpoint-6").completion() is not None
    # Two ranks take the steps that one would.
    warmup(make_job(tmp_path, "alone"))
    both, alone = (load_file(tmp_path / out / "checkpoint-6" / "adapter_model.safetensors") for out in ("w", "alone"))
    assert both.keys() == alone.keys()
    assert max(float((both[name] - alone[name]).abs().max()) for name in alone) < 1e-3


@pytest.mark.slow
def test_torchrun_shares_the_units(environment):
    del environment["WARMUP"]
    environment["EXTRACT_OPTIONS"] += " --min-steps 2 --unit-samples 8"
    done = launch("torchrun.sh", environment)
    store = Store.open(environment["STORE"])
    assert store.signal("base").completion() is not None
    assert done.stdout.count("samples done in signal base") == 2


def test_torchrun_on_several_nodes_asks_where_they_are(environment):
    environment["NUM_NODES"] = "2"
    script = JOBS / "launch" / "torchrun.sh"
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
    assert "NODE_RANK: say which node this is" in done.stderr


SRUN = """#!/usr/bin/env bash
[[ $1 == --kill-on-bad-exit=1 ]] && shift
for i in 0 1; do
    SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_STEP_NUM_TASKS=2 "$@" & pids[i]=$!
done
wait "${pids[0]}" && wait "${pids[1]}"
"""


@pytest.fixture
def slurm(environment, tmp_path, repository) -> dict[str, str]:
    """A stand-in for Slurm: srun starts two tasks here, scontrol knows one host."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/sh\necho localhost\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    made = {
        **environment,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_SUBMIT_DIR": str(repository),
        "SLURM_NTASKS": "2",
    }
    plan([made["DATA"]], made["STORE"], DataSpec(min_steps=2), samples_per_unit=8)
    return made


@pytest.mark.slow
def test_slurm_tasks_are_ranks(slurm):
    launch("slurm.sbatch", slurm)
    store = Store.open(slurm["STORE"])
    assert store.signal_names == ["checkpoint-6"]
    assert store.signal("checkpoint-6").completion() is not None


def test_slurm_array_jobs_are_shards(slurm, tmp_path):
    (tmp_path / "bin" / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    slurm["PYTHON"] = "python"
    # The second task of two, numbered from one.
    array = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "2"}
    told = launch("slurm.sbatch", {**slurm, **array}).stdout.split()
    parameters = parse("extract", *told[3:])
    assert told[:3] == ["-m", "grace_store", "extract"]
    assert (parameters["shard"], parameters["adapter"]) == ((1, 2), (slurm["WARMUP"],))


def test_a_ray_cluster_is_told_what_to_do(environment, tmp_path):
    echo = tmp_path / "echo-python"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    told = launch("ray.sh", {**environment, "PYTHON": str(echo), "NUM_WORKERS": "5"}).stdout.split()
    assert told[:3] == ["-m", "grace_store", "extract"]
    parameters = parse("extract", *told[3:])
    assert (parameters["engine"], parameters["address"], parameters["workers"]) == ("ray", "auto", 5)
    assert parameters["adapter"] == (environment["WARMUP"],)


def test_pods_of_an_indexed_job_are_shards_that_cover_all_units():
    job = yaml.safe_load((JOBS / "launch" / "kubernetes.yaml").read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "grace_store", "extract"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    shards = []
    for index in range(job["completions"]):
        told = [argument.replace("$(JOB_COMPLETION_INDEX)", str(index)) for argument in container["args"]]
        shards.append(parse("extract", *told)["shard"])
    assert shards == [(index, job["completions"]) for index in range(job["parallelism"])]
    assert job["completionMode"] == "Indexed"
    # A failure policy is accepted only for pods that are not restarted in place.
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    (rule,) = [rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert rule["onExitCodes"]["values"] == [click.UsageError.exit_code]


def test_the_final_training_is_the_papers_recipe(tmp_path):
    swift = tmp_path / "swift"
    swift.write_text('#!/bin/sh\nprintf "%s\\n" "$NPROC_PER_NODE" "$@"\n')
    swift.chmod(0o755)
    told = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MODEL": "Qwen/Qwen3-VL-2B-Instruct", "SUBSET": "subset.jsonl"}
    script = JOBS / "paper" / "train_ms_swift.sh"
    done = subprocess.run(["bash", script, "--seed", "7"], env=told, capture_output=True, text=True, check=True)
    recipe = (
        "8 sft --model Qwen/Qwen3-VL-2B-Instruct --dataset subset.jsonl --train_type lora --torch_dtype bfloat16 "
        "--num_train_epochs 1 --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --learning_rate 1e-4 "
        "--warmup_ratio 0.05 --lora_rank 8 --lora_alpha 32 --target_modules all-linear --freeze_vit true "
        "--freeze_aligner true --attn_impl flash_attn --padding_free true --packing true "
        "--gradient_checkpointing true --max_length 4096 --deepspeed zero2 --output_dir output --seed 7"
    )
    assert done.stdout.split() == recipe.split()
