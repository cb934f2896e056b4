"""`selftest`: the image's own server on tiny models, with and without draft trees, compared."""
