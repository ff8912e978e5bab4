#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --chdir="/home/me/my project"
#SBATCH --output=/s/digits.out
#SBATCH --error=/s/digits.err
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2
#SBATCH --time=2:00:00
#SBATCH --partition=cpu
#SBATCH --account=me
#SBATCH --constraint=avx2
#SBATCH --qos=low
#SBATCH --mem-per-cpu=4G
#SBATCH --comment="a b"

module load python/3.12
export OMP_PROC_BIND=false
exec /opt/python -P -m dtrain_cli.main launch --on slurm 'a program.py'
