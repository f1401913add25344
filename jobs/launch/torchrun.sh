#!/usr/bin/env bash
# Extraction with torchrun: every rank does its own share of the units. On one machine:
#   MODEL=./Qwen3-VL-2B-Instruct STORE=traces.zarr WARMUP=warmup jobs/launch/torchrun.sh
# On several, with the store on a disk they share: NUM_NODES=4 NODE_RANK=0..3 MASTER_ADDR=first-host, on each.
# The store is planned already, or DATA is given. May be set too: IMAGES, NUM_GPUS, MASTER_PORT, CONFIGS, PYTHON,
# EXTRACT_OPTIONS. WARMUP may be left out: then the signal is "base".
set -euo pipefail
: "${MODEL:?say where the model is}" "${STORE:?say where the store is}"

CONFIGS="${CONFIGS:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../paper" && pwd)}"
PYTHON="${PYTHON:-python}"
if [[ "${NUM_NODES:-1}" -gt 1 ]]; then
    : "${NODE_RANK:?say which node this is}" "${MASTER_ADDR:?say where the first node is}"
    PLACE=(--nnodes "$NUM_NODES" --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"
        --master-port "${MASTER_PORT:-29500}")
else
    PLACE=(--standalone)
fi
OPTIONS=(${DATA:+--data "$DATA"} ${WARMUP:+--adapter "$WARMUP"} ${IMAGES:+--images "$IMAGES"})

# shellcheck disable=SC2086 - options are meant to be split
exec "$PYTHON" -m torch.distributed.run "${PLACE[@]}" --nproc-per-node "${NUM_GPUS:-8}" \
    -m grace_store extract "$STORE" --config "$CONFIGS/extract.toml" --model "$MODEL" \
    "${OPTIONS[@]}" ${EXTRACT_OPTIONS:-}
