#!/bin/sh
#SBATCH --job-name=digits
#SBATCH --nodes=4
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=/s/digits.out
#SBATCH --error=/s/digits.err
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --cpus-per-task=2
#SBATCH --time=2:00:00
#SBATCH --partition=cpu
#SBATCH --account=me
#SBATCH --constraint=avx2

exec /opt/python -P -m dtrain_cli.main launch --on slurm 'a program.py'
