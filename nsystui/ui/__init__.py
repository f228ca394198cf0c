"""The Textual application: frames shown, keys turned into selections."""
