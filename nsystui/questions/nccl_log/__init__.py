"""Questions about NCCL's debug log, answered while it streams by."""
