"""The commands of the shell: a module each, none of which imports textual but ``open``."""
