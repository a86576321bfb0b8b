"""Tokenizer, chat template, and text of exactly N tokens with exactly the prefix that is shared."""
