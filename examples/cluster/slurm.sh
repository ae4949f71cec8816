#!/bin/bash
# The benchmarks on five nodes of a Slurm cluster, a process on each, one table of each program. docs/cluster.md explains it.
# From tern's source folder, on a file system that all nodes see:
#
#   sbatch examples/cluster/slurm.sh [FLAG...]     # further flags of the programs, as in --seconds=10
#
#SBATCH --job-name=tern
#SBATCH --nodes=5
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --exclusive
#SBATCH --time=00:10:00
#SBATCH --output=tern-%j.out
set -euo pipefail

programs=${TERN_PROGRAMS:-build/release/microbench}

for program in small_rpc_rate session_scale incast large_rpc_bandwidth; do
  # srun of Slurm 22.05 and later does not take --cpus-per-task over from sbatch.
  srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --distribution=block --kill-on-bad-exit=1 \
    "$programs/$program" --launcher=slurm --transport=udp --json "$@" | scripts/cluster_table
done
