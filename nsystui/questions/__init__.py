"""Questions, a module each: from store and selection to an answer, without knowledge of screens."""
