#!/bin/sh
# The job array: task 0 requeues itself once, task 1 fails.
if [ "$SLURM_ARRAY_TASK_ID" = 0 ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
    # Slurm would run it again after 2 minutes; job_cleanup.py removes it from the queue
    scontrol requeue "$SLURM_JOB_ID" || exit 9
    sleep 20
fi
[ "$SLURM_ARRAY_TASK_ID" = 1 ] && exit 3
exit 0
