"""The models in service: loading, replacing, retiring them, and what is said about them."""
