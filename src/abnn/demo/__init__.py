"""Two models to try: a digit reader that is trained in a minute, and a network that names what is in photographs."""
