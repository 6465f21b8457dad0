"""ReFrame as fast as it gets here: squeue scheduler, srun launcher, all jobs at once, ten polls a second.

A node with a job that ends is `ReqNodeNotAvail` to Slurm for a moment: ReFrame would cancel the next job there.
JOBS in the environment: how many jobs wait or run at once.
"""

import os

site_configuration = {
    "systems": [
        {
            "name": "sandbox",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "batch",
                    "scheduler": "squeue",
                    "launcher": "srun",
                    "environs": ["builtin"],
                    "max_jobs": int(os.environ.get("JOBS", "1000")),
                    "sched_options": {"use_nodes_option": False, "ignore_reqnodenotavail": True},
                }
            ],
        }
    ],
    "environments": [{"name": "builtin", "cc": "cc", "target_systems": ["*"]}],
    "general": [
        {
            "poll_rate_max": 10,
            "poll_rate_min": 10,
            "poll_rate_decay": 0,
            "remote_detect": False,
            "resolve_module_conflicts": False,
            "use_login_shell": False,
        }
    ],
    "logging": [
        {
            "level": "info",
            "handlers": [{"type": "file", "name": "reframe.log", "level": "info", "format": "%(message)s"}],
            "handlers_perflog": [],
        }
    ],
}
