"""What every room may use: errors, text, units, answers, the selection, and what the machine and the terminal allow."""
