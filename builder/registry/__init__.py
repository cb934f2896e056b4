"""A client of OCI registries (distribution specification 1.1): resumes, retries, loses nothing."""
