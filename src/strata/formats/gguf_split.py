"""The files of a split GGUF: `NAME-00001-of-00003.gguf` and its siblings (llama.cpp's gguf-split)."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from strata.errors import ModelFileError

_PART = re.compile(r"^(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


class PartName(NamedTuple):
    """A part's file name, taken apart: `prefix`, the part's number from 1, and how many there are."""

    prefix: str
    number: int
    count: int

    def sibling(self, number: int) -> str:
        """The file name of part `number`."""
        return f"{self.prefix}-{number:05d}-of-{self.count:05d}.gguf"


def part_name(file_name: str) -> PartName | None:
    """Take the name of a split GGUF's part apart; None where the name is not of that form."""
    match = _PART.match(file_name)
    if match is None:
        return None
    return PartName(match["prefix"], int(match["number"]), int(match["count"]))


def all_parts(path: Path) -> list[Path]:
    """The files that belong to `path`, in order: itself, or all parts of the split that it is a part of.

    Raises:
        ModelFileError: parts are missing (the text lists them) or the name's numbers make no sense.
    """
    part = part_name(path.name)
    if part is None or not path.is_file():
        return [path]
    if not 1 <= part.number <= part.count:
        raise ModelFileError(f"{path}: is named part {part.number} of {part.count}")
    parts = [path.with_name(part.sibling(number)) for number in range(1, part.count + 1)]
    present = {p.name for p in path.parent.iterdir()}  # one listing: the name may say 99,999 parts
    missing = [p.name for p in parts if p.name not in present]
    if missing:
        shown = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise ModelFileError(f"{path}: {len(missing)} of {part.count} parts are missing beside it: {shown}")
    return parts


def check_part(path: Path, metadata: Any, index: int, count: int, num_tensors: int) -> None:
    """Check one part's `split.*` keys against its place among the files.

    Args:
        path: the part, for error messages.
        metadata: the part's keys and values.
        index: its place from 0, by file name.
        count: number of files, by file name.
        num_tensors: tensors in all files together.
    """
    stated_count = metadata.get("split.count", 0)
    if stated_count in (0, 1) and count == 1:
        return
    if count == 1:
        raise ModelFileError(
            f"{path}: is one part of {stated_count!r:.40} (split.count); "
            "rename the parts to NAME-00001-of-0000N.gguf and keep them in one folder"
        )
    if stated_count != count:
        raise ModelFileError(
            f"{path}: split.count is {stated_count!r:.40}, its name says {count}: it is from another split"
        )
    stated_index = metadata.get("split.no")
    if stated_index != index:
        raise ModelFileError(
            f"{path}: is named part {index + 1}, its split.no is {stated_index!r:.40} and not {index}"
        )
    stated_tensors = metadata.get("split.tensors.count")
    if stated_tensors != num_tensors:
        raise ModelFileError(
            f"{path}: split.tensors.count is {stated_tensors!r:.40}, "
            f"the {count} parts have {num_tensors} tensors"
        )
