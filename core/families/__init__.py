"""Parts that several algorithms share: condensing (`condensing`), one upload only (`one_shot`), public images
(`public_images`), networks that clients keep (`own_models`), generators of images and features
(`generative`) and those of images from label maps (`conditional`).
"""
