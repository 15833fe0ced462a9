"""The judge inside other people's programs."""
