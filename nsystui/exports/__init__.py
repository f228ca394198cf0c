"""NVIDIA's files: finding them, identifying their version, reading them as canonical tables."""
