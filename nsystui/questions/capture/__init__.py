"""The capture: how to record more, the output of the application, a first look at a large export."""
