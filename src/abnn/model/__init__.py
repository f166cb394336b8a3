"""The blocks of a network, the attachments, and the attached network."""
