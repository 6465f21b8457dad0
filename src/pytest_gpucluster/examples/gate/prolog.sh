#!/bin/sh
# Prolog of slurm.conf, with PrologFlags=Alloc: a node that requires a repair gets no job. Slurm drains it and requeues the job.
exec /opt/gpucluster/bin/gpucluster gate --cluster /etc/gpucluster/prod.yaml \
  --context prolog --budget 8s
