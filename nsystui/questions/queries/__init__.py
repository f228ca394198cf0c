"""How the store is asked: conditions of a selection, statistics, pages, and the registry of questions."""
