"""From files of rows to packs of tokens: reading, chat templates, loss masks, packing; no model."""
