"""The benchmark "clinc": which queries does a classifier of 150 intents not know?

``data`` reads CLINC150 and makes typos, ``network`` is a small transformer on pretrained embeddings, ``run`` measures and tabulates.
"""
