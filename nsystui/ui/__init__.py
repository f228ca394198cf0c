"""The Textual application: shows answers, and turns keys into selections."""
