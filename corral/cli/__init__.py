"""The `corral` command: it parses, calls the SDK and renders the answer; no rules and no HTTP of its own."""
