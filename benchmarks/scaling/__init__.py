"""Growth of cost with size: exponents, and whole verbs at ten times the size."""
