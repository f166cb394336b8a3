"""The photograph demo: how what it ships was fitted, and what it says about pictures that nobody chose settings on."""
