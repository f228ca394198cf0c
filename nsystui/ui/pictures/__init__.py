"""The answers behind the screens that draw: one call each, without a widget."""
