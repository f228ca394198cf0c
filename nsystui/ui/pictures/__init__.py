"""The answers behind the screens that draw: each asked for in one go, without a widget."""
