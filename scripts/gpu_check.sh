#!/usr/bin/env bash
# What only a GPU can show, in stages of a few minutes each, so that a short lease is enough:
#
#   scripts/gpu_check.sh tests    the tests that are marked gpu
#   scripts/gpu_check.sh train    of these the trainings, then GPT-2-medium, the plain GPT-1.3B and
#                                 their fastest matrix product in one run: the bars' base
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

# The newest run in a folder, packed beside it.
pack() { trainrig bundle "$(ls -d "$1"/2*Z-* | tail -n 1)" --out "$out/$2.bundle"; }

case "${1:-}" in
tests)
    "$python" -m pytest -q -m gpu tests | tee "$out/tests.log"
    ;;
train)
    "$python" -m pytest -q -m gpu tests/gpu/test_gpu_training.py | tee "$out/train-tests.log"
    for model in GPT-2 GPT-1.3B; do
        trainrig train experiments/one-gpu.toml --only "$model" --rounds "${ROUNDS:-1}" \
            --out "$out/train" | tee "$out/train-$model.txt"
    done
    trainrig bench matmul --peak --dtype bf16 --device gpu --budget "${BUDGET:-1m}" \
        --out "$out/train" | tee "$out/train-peak.txt"
    for run in "$out"/train/2*Z-*; do
        trainrig bundle "$run" --out "$out/train-$(basename "$run").bundle"
    done
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
    sed -n '2,14p' "$0" | sed 's/^# \{0,1\}//' >&2
    exit 2
    ;;
esac
