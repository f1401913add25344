#!/usr/bin/env bash
# Extraction on the GPUs of a Ray cluster, whose nodes may come and go. On one of its nodes, such as the head:
#   MODEL=/shared/Qwen3-VL-2B-Instruct STORE=/shared/traces.zarr WARMUP=/shared/warmup jobs/launch/ray.sh
# From elsewhere, with what lies here sent along (Ray's dashboard listens on 8265):
#   ray job submit --address http://head:8265 --working-dir . -- env MODEL=... STORE=... jobs/launch/ray.sh
# Every node sees STORE (a shared disk, or s3://bucket/traces.zarr), MODEL, DATA, WARMUP and IMAGES under these names.
# The store is planned already, or DATA is given. May be set too: ADDRESS (HOST:PORT of the cluster's head; without it
# that of this node), NUM_WORKERS (at most so many GPUs), CONFIGS, PYTHON, EXTRACT_OPTIONS.
# WARMUP may be left out: then the signal is "base". Run it again after any interruption: it does only what is missing.
set -euo pipefail
: "${MODEL:?say where the model is}" "${STORE:?say where the store is}"

CONFIGS="${CONFIGS:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../paper" && pwd)}"
OPTIONS=(${DATA:+--data "$DATA"} ${WARMUP:+--adapter "$WARMUP"} ${IMAGES:+--images "$IMAGES"}
    ${NUM_WORKERS:+--workers "$NUM_WORKERS"})

# shellcheck disable=SC2086 - options are meant to be split
exec "${PYTHON:-python}" -m grace_store extract "$STORE" --config "$CONFIGS/extract.toml" --model "$MODEL" \
    --engine ray --address "${ADDRESS:-auto}" "${OPTIONS[@]}" ${EXTRACT_OPTIONS:-}
