"""The capture: the application's output, lost launches, commands that record more, a first look at a large export."""
