#!/bin/bash
#SBATCH --job-name=@name@
#SBATCH --output="@log@/share-%a.log"
#SBATCH --signal=B:TERM@120
# Written by `invoke cluster`: compiles share $SLURM_ARRAY_TASK_ID of @cell@, on this node's own disk.
set -e
@prologue@
set -u
export TORCHMILL_TAG=@tag@ TORCHMILL_CONFIGS=@configs@
export TORCHMILL_HOME=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/torchmill-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID
export NOX_ENVDIR=$TORCHMILL_HOME/environments
mkdir -p "$TORCHMILL_HOME/.torchmill"
ln -sfn @sources@ "$TORCHMILL_HOME/.torchmill/sources"
trap 'rm -rf "$TORCHMILL_HOME" || { sleep 5; rm -rf "$TORCHMILL_HOME"; }' EXIT # what is being ended may still write
cd @checkout@
@nox@ -s @cell@ -- --shard auto --parts @folder@/parts @options@ & # bash hears of Slurm's signal only while it waits
build=$!
trap 'kill -TERM $build' TERM
wait $build || { code=$?; wait $build || true; exit $code; }
