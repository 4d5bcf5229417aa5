"""ImageNet augmentation: of images on the host with Pillow and numpy, and of batches on the device (`mixing`)."""
