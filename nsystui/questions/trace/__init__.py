"""Data for other tools: Nsight Compute commands (``ncu``), traces for Perfetto and Paraver (``trace``)."""
