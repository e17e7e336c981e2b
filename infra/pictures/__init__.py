"""Pictures: safe opening of their files as RGB, and boxes in them."""
