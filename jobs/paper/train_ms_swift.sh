#!/usr/bin/env bash
# The final training, with ms-swift 3.12, on what `grace-store select --as ms-swift` wrote:
#   MODEL=Qwen/Qwen3-VL-2B-Instruct SUBSET=subset.jsonl jobs/paper/train_ms_swift.sh
# OUTPUT and NUM_GPUS may be set too. ms-swift 4 calls the option otherwise: TUNER_OPTION=--tuner_type.
# Images must be under "images" in SUBSET: ms-swift does not read MMathCoT's own "image_url".
set -euo pipefail
: "${MODEL:?say which model to train}" "${SUBSET:?say which records to train on}"

export NPROC_PER_NODE="${NUM_GPUS:-8}"
exec swift sft \
    --model "$MODEL" \
    --dataset "$SUBSET" \
    "${TUNER_OPTION:---train_type}" lora \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 2 \
    --learning_rate 1e-4 \
    --warmup_ratio 0.05 \
    --lora_rank 8 \
    --lora_alpha 32 \
    --target_modules all-linear \
    --freeze_vit true \
    --freeze_aligner true \
    --attn_impl flash_attn \
    --padding_free true \
    --packing true \
    --gradient_checkpointing true \
    --max_length 4096 \
    --deepspeed zero2 \
    --output_dir "${OUTPUT:-output}" \
    "$@"
