"""Reading images in the idx format: Fashion-MNIST and MNIST, with the digests of their contents.

A file is looked for as `images/NAME/FILE` in the data directory and, of Fashion-MNIST, where Debian's package
`dataset-fashion-mnist` installs it; plain or gzipped.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Integer, UInt8

from ...core.files import prepare_directory
from ...core.types import check_choice
from .datasets import data_directory, import_optional
from .sources import Source, download
from .unpack import open_gzip, open_plain

_LARGEST = 2**26  # bytes, unpacked
_BYTES = 8  # the code of unsigned bytes in an idx file
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where the package `dataset-fashion-mnist` installs its files."""


@dataclass(frozen=True)
class ImageSource:
    """Where a set of images comes from.

    Args:
        url: the address of its files, without their names.
        digests: by file the SHA-256 of its unpacked content.
        installed: a further directory to look in.
    """

    url: str
    digests: Mapping[str, str]
    installed: Path | None = None


SOURCES: Mapping[str, ImageSource] = {
    "fashion_mnist": ImageSource(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        DEBIAN,
    ),
    "mnist": ImageSource(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        {"t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
    ),
}


@dataclass(frozen=True)
class Images:
    """Grey images and their labels, counted from 0."""

    images: UInt8[np.ndarray, "rows height width"]
    labels: Integer[np.ndarray, " rows"]


def load_fashion_mnist(directory: Path | None = None) -> tuple[Images, Images]:
    """Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017): 60,000 images to train on and 10,000 to test on, ten classes."""
    read = {name: read_file("fashion_mnist", name, directory) for name in SOURCES["fashion_mnist"].digests}
    train, test = (
        Images(read[f"{part}-images-idx3-ubyte"], read[f"{part}-labels-idx1-ubyte"].astype(np.int32))
        for part in ("train", "t10k")
    )
    return train, test


def load_mnist_test(directory: Path | None = None) -> UInt8[np.ndarray, "rows height width"]:
    """The 10,000 test images of MNIST (LeCun et al., 1998), of the size of Fashion-MNIST's."""
    return read_file("mnist", "t10k-images-idx3-ubyte", directory)


def digits() -> Images:
    """Handwritten digits of 8×8 pixels, 1,797 of them; they come with scikit-learn."""
    shipped = import_optional("sklearn.datasets").load_digits()
    scaled = np.round(shipped.images * (255 / 16)).astype(np.uint8)
    return Images(scaled, shipped.target.astype(np.int32))


def read_file(
    name: str, file: str, directory: Path | None = None, *, sources: Mapping[str, ImageSource] = SOURCES
) -> np.ndarray:
    """The array of a file of a set; says how to get it where it is missing or damaged.

    Args:
        name: "fashion_mnist" or "mnist".
        file: its name without ".gz".
        directory: see `data_directory`.
        sources: which sets there are.
    """
    check_choice("images", name, tuple(sources))
    source = sources[name]
    home = folder_of(name, data_directory(directory))
    path = next((own for place in (home, source.installed) if place for own in _spellings(place / file)), None)
    if path is None:
        package = " install Debian's package `dataset-fashion-mnist`," if source.installed else ""
        raise FileNotFoundError(
            f"{file} of {name} is not in {home}. Run `steinkern data fetch {name}`,{package} put it there (see "
            "docs/data.md), or say where it is with `--data` or the variable STEINKERN_DATA."
        )
    return parse_idx(_content(path, source.digests[file]), path)


def fetch_images(
    name: str, directory: Path, *, sources: Mapping[str, ImageSource] = SOURCES, progress: bool = True
) -> list[Path]:
    """Download the files of a set that are not in the data directory; each has its digest before it is moved there."""
    check_choice("images", name, tuple(sources))
    source, home = sources[name], folder_of(name, directory)
    prepare_directory(home, "the data directory", "Choose another with `--data`.")
    for file, digest in source.digests.items():
        if not _spellings(home / file):
            original = Source(f"{source.url}/{file}.gz", lambda path, most: {}, largest=_LARGEST)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=home) as scratch:
                fetched = download(file, original, Path(scratch), progress)
                packed = fetched.rename(fetched.with_name(f"{file}.gz"))
                _content(packed, digest)
                shutil.move(packed, home / packed.name)
    return [own for file in source.digests for own in _spellings(home / file)[:1]]


def folder_of(name: str, directory: Path) -> Path:
    """The folder of a set in a data directory."""
    return directory / "images" / name


def parse_idx(content: bytes, path: Path) -> np.ndarray:
    """The array of unsigned bytes in an idx file; `path` is for the errors.

    The format: two zeros, the code of the type, the number of axes; the length of each axis in four bytes, the largest
    first; then the entries.
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, _BYTES]):
        raise ValueError(f"{path} must be an idx file of unsigned bytes, which begins with 0, 0, 8.")
    head = 4 + 4 * content[3]
    shape: Sequence[int] = [int.from_bytes(content[at : at + 4], "big") for at in range(4, head, 4)]
    if len(content) != head + int(np.prod(shape, dtype=object)):
        raise ValueError(f"{path} must hold {' × '.join(map(str, shape))} bytes after its head, got another number.")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _spellings(path: Path) -> list[Path]:
    """The files that hold this one, plain or gzipped."""
    return [own for own in (path, path.with_name(f"{path.name}.gz")) if own.is_file()]


def _content(path: Path, digest: str) -> bytes:
    try:
        with (open_gzip if path.suffix == ".gz" else open_plain)(path, _LARGEST) as stream:
            content = stream.read()
    except PermissionError as error:
        raise PermissionError(f"{path} cannot be read: {error.strerror}.") from error
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split()).rstrip('.')}. Delete it.") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path} holds other data: its content must have the SHA-256 {digest}. Delete it.")
    return content
