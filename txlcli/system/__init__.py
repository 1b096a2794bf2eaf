"""Atomic files, locks, the environment of torchrun, srun or mpirun, processors, memory."""
