#!/bin/sh
# HealthCheckProgram of slurm.conf, with HealthCheckInterval=300 and HealthCheckNodeState=IDLE,CYCLE.
# --drain: drain the own node for what requires a repair, and take that back once it has passed.
exec /opt/gpucluster/bin/gpucluster gate --cluster /etc/gpucluster/prod.yaml \
  --context health --drain
