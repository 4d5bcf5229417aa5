"""The arrow-pointing data set (arXiv 2506.11997, Section 4.1): does the arrow point at the circle?

    python -m data.arrow_pointing build --seed 43             # prepare; also: hash, sheet; see --help
    tfds.data_source("arrow_pointing/seed43", data_dir=...)   # after `import data.arrow_pointing`

Files are array_record, which TFDS writes and reads without TensorFlow. With TensorFlow, `tfds build` and `tfds.load`
work as well (the latter needs builder_kwargs={"file_format": "tfrecord"} and a folder of its own).
"""

from data.arrow_pointing import builder as _registers_it_with_tfds  # noqa: F401
