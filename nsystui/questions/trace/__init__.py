"""Other tools: commands for Nsight Compute (``ncu``), traces for Perfetto and Paraver (``trace``)."""
