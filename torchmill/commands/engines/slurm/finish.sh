#!/bin/bash
#SBATCH --job-name=@name@
#SBATCH --output="@log@/finish.log"
#SBATCH --signal=B:TERM@120
# Written by `invoke cluster`: builds @cell@ of all that the shares compiled.
set -e
@prologue@
set -u
export TORCHMILL_TAG=@tag@ TORCHMILL_HOME=@home@ TORCHMILL_CONFIGS=@configs@ NOX_ENVDIR=@environments@
cd @checkout@
exec @nox@ -s @cell@ -- --parts @folder@/parts @options@
