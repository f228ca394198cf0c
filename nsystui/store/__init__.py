"""The store: an export turned into columns once, and one SQL over all open exports."""
