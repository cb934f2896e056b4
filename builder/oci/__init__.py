"""The image as it leaves this machine: an OCI image layout that is a function of its files."""
