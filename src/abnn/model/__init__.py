"""Which blocks a network has, how an attachment looks, and the attached network."""
