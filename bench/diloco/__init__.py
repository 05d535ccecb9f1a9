"""What rounds in a store cost, what they are beside others' ways, and how well models learn by them."""
