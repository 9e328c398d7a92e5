#!/usr/bin/env bash
# What only a GPU can show, in stages of a few minutes each, so that a short lease is enough:
#
#   scripts/gpu_check.sh          the first look at a GPU, in twelve minutes at the most and without a
#                                 network: does everything start and answer (contact), a qualify of
#                                 four minutes, then trainings on one GPU.  Each part is cut off at
#                                 its limit and done once: started again, it goes on with the next.
#                                 Ends with one page, OUT/summary.txt, and one file, OUT.tar.gz
#
# By themselves:
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

limit=540                # seconds that a part may take
deadline=$((SECONDS + ${LIMIT:-86400}))

# A part, unless it is done: NAME COMMAND...; its output is OUT/train/NAME.txt.  It is cut off after
# $limit seconds, or when the time of the whole is over.
part() {
    local name=$1 code begun=$SECONDS left=$((deadline - SECONDS))
    shift
    [[ -e $out/train/$name.done ]] && { echo "$name: done before"; return; }
    [[ $left -gt 5 ]] || { echo "$name: no time left; start again to go on with it"; return; }
    timeout --kill-after=5 $((left < limit ? left : limit)) "$@" 2>&1 \
        | tee "$out/train/$name.txt" && code=0 || code=$?
    case $code in
    0 | 1 | 3)  # a finding is a result
        echo "exit code $code, $((SECONDS - begun)) s" >"$out/train/$name.done" ;;
    124 | 137) echo "$name: its time is over; start again to go on with it" ;;
    *) echo "$name: exit code $code" ;;
    esac
}

# Does it start, and do all checks answer?  Each is short: what hangs here is the first finding.
contact() {
    limit=40
    part versions "$python" -c 'import sys, torch; found = torch.cuda.is_available(); print(sys.version, torch.__version__, torch.version.cuda or torch.version.hip, torch.cuda.get_device_name() if found else "no GPU that torch can use")'
    part inspect "$python" -m trainrig inspect
    part doctor "$python" -m trainrig doctor
    limit=60
    part kernels "$python" -m pytest -q -m gpu tests/gpu/test_gpu.py
    part matmul "$python" -m trainrig bench matmul --device gpu --budget 20s --out "$out/contact"
}

# One page: what each part came to, and what qualify says.
summary() {
    local name
    echo "gpu_check, $(date -u +%FT%TZ), $SECONDS s"
    for name in versions inspect doctor kernels matmul qualify one-gpu traced fastest; do
        if [[ -e $out/train/$name.done ]]; then
            echo "$name: $(<"$out/train/$name.done")"
        elif [[ -e $out/train/$name.txt ]]; then
            echo "$name: not ended: $(tail -n 1 "$out/train/$name.txt" | cut -c 1-120)"
        else
            echo "$name: not started"
        fi
    done
    for name in versions qualify one-gpu fastest; do
        [[ ! -e $out/train/$name.txt ]] || { echo "== $name"; tail -n 14 "$out/train/$name.txt"; }
    done
}

# The first look, within LIMIT seconds (twelve minutes); the rest of them is for the summary.
first_look() {
    mkdir -p "$out/train"
    export HF_HUB_OFFLINE=1
    deadline=$((SECONDS + ${LIMIT:-690}))
    contact
    limit=270
    part qualify "$python" -m trainrig qualify --budget "${BUDGET:-4m}" --out "$out/runs"
    limit=150
    part one-gpu "$python" -m trainrig train experiments/one-gpu.toml \
        --only "GPT-2-medium, Trainer at" --only "GPT-2-medium, ours, compiled" \
        --rounds 1 --out "$out/one-gpu"
    limit=60
    part traced "$python" -m trainrig train --model gpt2-medium --device cuda --micro-batch 8 \
        --seq-len 1024 --steps 10 --trace --out "$out/traced"
    part fastest "$python" -m trainrig bench matmul --peak --dtype bf16 --device gpu --budget 40s \
        --out "$out/peak"
    summary | tee "$out/summary.txt"
    tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")"
    echo "$out/summary.txt, $out.tar.gz"
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
"")
    first_look
    ;;
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
    sed -n '2,26p' "$0" | sed 's/^# \{0,1\}//' >&2
    exit 2
    ;;
esac
