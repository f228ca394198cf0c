"""The questions: a module each, from store and selection to an answer; no screen is known here."""
