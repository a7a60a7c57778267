"""Images in the idx format: Fashion-MNIST and MNIST.

A data directory holds `images/NAME/FILE`; a file that is missing is downloaded.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
import sklearn.datasets
from jaxtyping import Integer, UInt8

from .datasets import data_directory

URLS = {
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "mnist": "https://storage.googleapis.com/cvdf-datasets/mnist",
}
HASHES = {
    "fashion_mnist/train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "fashion_mnist/train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "fashion_mnist/t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "fashion_mnist/t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    "mnist/t10k-images-idx3-ubyte": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
}
"""The published hashes of the gzipped files."""


@dataclass(frozen=True)
class Images:
    """Grey images and their labels, counted from 0."""

    images: UInt8[np.ndarray, "rows height width"]
    labels: Integer[np.ndarray, " rows"]


def load_fashion_mnist(directory: Path | None = None) -> tuple[Images, Images]:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 60,000 images to train on and 10,000 to test on, ten classes."""
    names = [name for name in HASHES if name.startswith("fashion_mnist")]
    images, labels, test_images, test_labels = (read_idx(name, directory) for name in names)
    return Images(images, labels.astype(np.int32)), Images(test_images, test_labels.astype(np.int32))


def load_mnist_test(directory: Path | None = None) -> UInt8[np.ndarray, "rows height width"]:
    """The 10,000 test images of MNIST (LeCun et al., 1998), of the size of Fashion-MNIST's."""
    return read_idx("mnist/t10k-images-idx3-ubyte", directory)


def digits() -> Images:
    """Handwritten digits of 8×8 pixels, 1,797 of them; they come with scikit-learn."""
    shipped = sklearn.datasets.load_digits()
    scaled = np.round(shipped.images * (255 / 16)).astype(np.uint8)
    return Images(scaled, shipped.target.astype(np.int32))


def read_idx(name: str, directory: Path | None = None) -> UInt8[np.ndarray, "..."]:
    """The array of a file of `HASHES`, downloaded where the data directory does not hold it.

    The format: two zeros, the code of the type, the number of axes; the length of each axis in four bytes, the largest
    first; then the entries, which are bytes here.
    """
    path = data_directory(directory) / "images" / name
    if not path.is_file():
        url, unpack = f"{URLS[path.parent.name]}/{path.name}.gz", pooch.Decompress(name=path.name)
        pooch.retrieve(url, HASHES[name], f"{path.name}.gz", path.parent, processor=unpack)
    content = path.read_bytes()
    shape = np.frombuffer(content, ">i4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
