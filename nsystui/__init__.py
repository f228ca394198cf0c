"""nsystui: a terminal explorer for NVIDIA Nsight Systems exports."""

__version__ = "0.1.0"
