"""Events in time order, at any size, and the pages of long tables."""
