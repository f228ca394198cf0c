"""NCCL's debug log (``NCCL_DEBUG=INFO``), and what a training framework writes between its lines."""
