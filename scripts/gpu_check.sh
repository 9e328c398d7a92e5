#!/usr/bin/env bash
# What only a GPU can show, in stages of a few minutes each, so that a short lease is enough:
#
#   scripts/gpu_check.sh tests    the tests that are marked gpu
#   scripts/gpu_check.sh train    of these the trainings; then, in runs of their own, the bars of
#                                 GPT-2-medium and of the plain GPT-1.3B, what each fused kernel
#                                 is worth, CUDA graphs, the fastest matrix product.  Each part is
#                                 cut off after nine minutes, and done once: started again, it goes
#                                 on with the next (OUT/train/PART.done)
#   scripts/gpu_check.sh qualify  inspect, a five-minute qualify, its bundle
#   scripts/gpu_check.sh peak     the peak search for bf16 and fp16, and its bundle
#   scripts/gpu_check.sh classic  BERT-large of experiments/classic.toml, on one GPU
#   scripts/gpu_check.sh GPT-2 | BERT | Llama | GPT-Neo | GPT-1.3B
#                                 ours and Hugging Face's Trainer, experiments/one-gpu.toml
#
# Each stage can be run again by itself.  Results go to OUT (default: gpu_check/); nothing is
# installed: it uses the Python and torch that are there (PYTHON=python3).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-gpu_check}
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"

# Exit codes 1 (a finding) and 3 (incomplete) are results here, not failures of the script.
trainrig() { "$python" -m trainrig "$@" || echo "trainrig $1: exit code $?"; }

# The newest run in a folder, packed beside it: their names begin with the date.
pack() {
    local run newest=
    for run in "$1"/2*Z-*; do newest=$run; done
    trainrig bundle "$newest" --out "$out/$2.bundle"
}

# A part of train, unless it is done: NAME COMMAND...; the command's output is NAME.txt.
part() {
    local name=$1 code
    shift
    [[ -e $out/train/$name.done ]] && { echo "$name: done before"; return; }
    timeout --kill-after=10 540 "$@" | tee "$out/train/$name.txt" && code=0 || code=$?
    case $code in
    0 | 1 | 3) touch "$out/train/$name.done" ;;  # a finding is a result
    124) echo "$name: nine minutes are over; start again to go on with it" ;;
    *) echo "$name: exit code $code" ;;
    esac
}

# Rows of one-gpu.toml in a run of their own, packed: NAME ONLY...
rows() {
    local name=$1 only=()
    shift
    for word in "$@"; do only+=(--only "$word"); done
    part "$name" "$python" -m trainrig train experiments/one-gpu.toml "${only[@]}" \
        --rounds "${ROUNDS:-1}" --out "$out/train/$name"
    rm -f "$out/train-$name.bundle"
    pack "$out/train/$name" "train-$name"
}

case "${1:-}" in
tests)
    "$python" -m pytest -q -m gpu tests | tee "$out/tests.log"
    ;;
train)
    mkdir -p "$out/train"
    part contact "$python" -m pytest -q -m gpu tests/gpu/test_gpu_training.py
    rows bars-355M "GPT-2-medium, Trainer as" "GPT-2-medium, Trainer at" "GPT-2-medium, ours, compiled"
    rows bars-1.3B "GPT-1.3B, Trainer" "GPT-1.3B, ours, compiled"
    rows worth "GPT-2-medium, ours"
    rows graphs "GPT-2 of 128 tokens"
    part peak "$python" -m trainrig bench matmul --peak --dtype bf16 --device gpu \
        --budget "${BUDGET:-1m}" --out "$out/train/peak"
    pack "$out/train/peak" train-peak
    ;;
qualify)
    "$python" -c 'import sys, torch; print(sys.version, torch.__version__, torch.version.cuda)' \
        | tee "$out/versions.txt"
    trainrig inspect | tee "$out/inspect.txt"
    trainrig qualify --budget "${BUDGET:-5m}" --out "$out/runs" | tee "$out/qualify.txt"
    rm -f "$out/qualify.bundle"
    pack "$out/runs" qualify
    ;;
peak)
    trainrig bench matmul --peak --dtype bf16 --dtype fp16 --device gpu --budget "${BUDGET:-4m}" \
        --out "$out/peak" | tee "$out/peak.txt"
    rm -f "$out/peak.bundle"
    pack "$out/peak" peak
    ;;
classic)
    trainrig train experiments/classic.toml --only BERT --rounds "${ROUNDS:-3}" \
        --out "$out/classic" | tee "$out/classic.txt"
    rm -f "$out/classic.bundle"
    pack "$out/classic" classic
    ;;
GPT-2 | BERT | Llama | GPT-Neo | GPT-1.3B)
    trainrig train experiments/one-gpu.toml --only "$1" --rounds "${ROUNDS:-3}" \
        --out "$out/$1" | tee "$out/$1.txt"
    rm -f "$out/$1.bundle"
    pack "$out/$1" "$1"
    ;;
*)
    sed -n '2,17p' "$0" | sed 's/^# \{0,1\}//' >&2
    exit 2
    ;;
esac
