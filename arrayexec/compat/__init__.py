"""Namespaces in the manner of other frameworks, for programs that were written for them."""
