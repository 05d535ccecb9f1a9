"""HTTP to core: routes, authentication, error rendering; no rules."""
