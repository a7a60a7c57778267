"""Samplers: Stein, Newton, Langevin and Hamiltonian steps, ensembles, and the rules that build a kernel at a step."""
