#!/bin/bash
# Written by `invoke cluster`: makes both jobs, and lets the wheel's begin when all shares have ended, well or not.
set -eu
jobs=$(dirname "$0")/jobs.yaml
kubectl delete --ignore-not-found --filename "$jobs"
kubectl create --filename "$jobs"
while
    ended=$(kubectl get job @name@-shares --output 'jsonpath={.status.conditions[?(@.status=="True")].type}') || exit
    [[ ! $ended =~ (Complete|Failed)( |$) ]]
do
    sleep 30
done
kubectl patch job @name@-wheel --patch '{"spec": {"suspend": false}}'
