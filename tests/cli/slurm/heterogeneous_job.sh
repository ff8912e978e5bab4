#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=/s/digits.out
#SBATCH --error=/s/digits.err
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=2:00:00
#SBATCH --partition=big
#SBATCH --mem=64G
#SBATCH hetjob
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --time=2:00:00
#SBATCH --partition=cpu
#SBATCH --constraint=avx2

exec /opt/python -P -m dtrain_cli.main launch --on slurm 'a program.py'
