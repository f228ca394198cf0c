"""NCCL's debug log (``NCCL_DEBUG=INFO``), and the lines of training frameworks in it."""
