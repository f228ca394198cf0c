"""NVIDIA's files: finding them, identifying their version, reading them as canonical tables."""

EXPORT_ENDINGS = (".sqlite", ".sqlite3", ".db")
REPORT_ENDINGS = (".nsys-rep", ".qdrep")
RECORDING_ENDING = ".qdstrm"
"""The ending of a recording without a report, which `nsys export` does not accept."""
EXPORT_COMMAND = "nsys export -t sqlite --include-json=true --include-blobs=true"
