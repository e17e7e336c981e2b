"""Object storage: URLs, requests, conditional writes, a cache on this machine, and transfers of whole folders."""
