"""Consumer groups: who reads what, and how far they are."""
