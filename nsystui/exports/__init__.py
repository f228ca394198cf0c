"""NVIDIA's files: finding them, identifying the version that wrote them, reading them as canonical tables."""
