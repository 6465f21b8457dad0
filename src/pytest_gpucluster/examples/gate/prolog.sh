#!/bin/sh
# Prolog of slurm.conf, with PrologFlags=Alloc: a node that requires a repair gets no job. Slurm drains it and requeues the job.
# SchedulerParameters=nohold_on_prolog_fail: the job starts elsewhere at once; without it Slurm holds the job
# timeout: nothing of the gate, as its Python on a file server that is away, holds the job longer
found=$(timeout -k 5 60 /opt/gpucluster/bin/gpucluster gate --cluster /etc/gpucluster/prod.yaml --context prolog --budget 8s)
status=$?
printf '%s\n' "$found"
# a gate that could not start, as without its Python, drains nothing
case $status,$found in 1,gpucluster:*) exit 1 ;; *) exit 0 ;; esac
