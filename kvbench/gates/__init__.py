"""Gates: objectives in a line of text, and whether a run meets them, fails them, or cannot tell."""
