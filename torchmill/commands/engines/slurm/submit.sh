#!/bin/bash
# Written by `invoke cluster`: submits the shares, and the job that makes the wheel when they have ended, well or not.
set -eu
folder=@folder@
shares=$(sbatch --parsable @sbatch@ --array=1-@shards@ "$folder/shares.sh")
shares=${shares%%;*}
wheel=$(sbatch --parsable @sbatch@ "--dependency=afterany:$shares" "$folder/finish.sh")
wheel=${wheel%%;*}
echo "submitted: $shares (the shares), $wheel (the wheel, when they have ended)
logs and parts: $folder; \`squeue -j $shares,$wheel\` shows them, \`scancel $shares $wheel\` ends them
if the time of the wheel's job is up: sbatch, with the same options, and $folder/finish.sh goes on from there"
