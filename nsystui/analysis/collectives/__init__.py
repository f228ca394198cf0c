"""Collectives across the ranks of a job: which kernels are one operation, who came late, who waited (domain §6.4)."""
