"""A campaign: many small runs that test the nodes of a busy cluster as they come free, until each has a verdict.

`model` and `planner` are pure; `store` holds the state in the history file; `child` starts the runs and reads their event
logs; `campaign` is the loop over them; `summary` is what status, report and metrics show.
"""
