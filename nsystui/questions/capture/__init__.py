"""The capture itself: how to record more, what the application printed, a first look at a large export."""
