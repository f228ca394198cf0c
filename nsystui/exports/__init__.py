"""NVIDIA's files: finding them, knowing which version wrote them, reading them as canonical tables."""
