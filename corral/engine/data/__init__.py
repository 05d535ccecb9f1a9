"""From rows of data to packs of tokens."""
