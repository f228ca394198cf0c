"""Building blocks of the screens, drawn line by line, so that a key press costs a slow line few bytes."""
