"""The benchmark "pretrained": post-hoc scores and attachments on ImageNet networks that anyone can download.

``data`` reads the images and divides the classes, ``networks`` has EfficientNet-Lite, ``run`` measures and tabulates.
"""
