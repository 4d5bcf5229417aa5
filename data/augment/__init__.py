"""ImageNet augmentation on the host: Pillow and numpy, no device. Mixing and erasing are in `plstm.tasks.imagenet`."""
