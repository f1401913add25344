#!/usr/bin/env bash
# The paper's run on one machine: plan, warm-up on all GPUs, extraction with one worker for each GPU.
#   MODEL=./Qwen3-VL-2B-Instruct DATA=mmathcot.jsonl STORE=traces.zarr WARMUP=warmup jobs/launch/local_8gpu.sh
# May be set too: IMAGES (folder of images), NUM_GPUS, CONFIGS (folder of the three .toml files), PYTHON, and
# PLAN_OPTIONS, WARMUP_OPTIONS, EXTRACT_OPTIONS (further options, separated by spaces).
# Run it again after any interruption: it does only what is missing.
set -euo pipefail
: "${MODEL:?say where the model is}" "${DATA:?say where the dataset is}"
: "${STORE:?say where the store is to be}" "${WARMUP:?say where checkpoints are to be}"

CONFIGS="${CONFIGS:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../paper" && pwd)}"
PYTHON="${PYTHON:-python}"
NUM_GPUS="${NUM_GPUS:-8}"
IMAGE_OPTIONS=(${IMAGES:+--images "$IMAGES"})

# shellcheck disable=SC2086 - options are meant to be split
"$PYTHON" -m grace_store plan "$STORE" "$DATA" --config "$CONFIGS/plan.toml" ${PLAN_OPTIONS:-}
# shellcheck disable=SC2086
"$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$NUM_GPUS" \
    -m grace_store warmup "$STORE" --config "$CONFIGS/warmup.toml" --model "$MODEL" --out "$WARMUP" \
    "${IMAGE_OPTIONS[@]}" ${WARMUP_OPTIONS:-}
# shellcheck disable=SC2086
"$PYTHON" -m grace_store extract "$STORE" --config "$CONFIGS/extract.toml" --model "$MODEL" \
    --adapter "$WARMUP" --workers "$NUM_GPUS" "${IMAGE_OPTIONS[@]}" ${EXTRACT_OPTIONS:-}
