"""The models in service: load, replace, retire and describe them."""
