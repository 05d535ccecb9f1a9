"""HTTP alone: routes by noun, authentication, streams, rendering of errors; rules belong into `core`."""
