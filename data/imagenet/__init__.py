"""ImageNet-1k, folders of images, and mosaics drawn as they are read; and batches of any of them."""
