"""Leases: one process at a time writes a folder (`on_disk`) or a URL of object storage (`in_bucket`)."""
