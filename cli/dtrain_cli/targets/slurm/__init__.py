"""Slurm: the allocation that a launcher finds itself in, the job that asks for one, and agents by srun."""
