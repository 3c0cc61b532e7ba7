#!/bin/bash
# Written by `invoke cluster`: the wheel's job begins when all shares are made. If one fails in all its attempts, AWS
# Batch fails the wheel's job, too: then submit wheel.json alone, without --depends-on; it compiles what is missing.
set -eu
cd "$(dirname "$0")"
aws batch register-job-definition --cli-input-json file://definition.json
shares=$(aws batch submit-job --cli-input-json file://shares.json --query jobId --output text)
aws batch submit-job --cli-input-json file://wheel.json --depends-on "jobId=$shares"
