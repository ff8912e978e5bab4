"""`dtrain launch --on slurm`: in an allocation a launch with agents by srun, outside a job that is one."""
