"""Which errors concern a disk, and which only this process or one path (LOG-6, FLT-28..30). Pure.

    a disk             EIO, ENOSPC, EROFS, EDQUOT, ESTALE, ENODEV, EACCES, ENOENT, ... and all that are not named here
    this process       EMFILE, ENFILE: no descriptor is left; ENOMEM: no memory. Temporary.
    one path           ENAMETOOLONG, ELOOP, ENOTDIR, EISDIR: other files of the same disk can be used. Permanent.

Only an error of the disk takes a log directory offline. A failed sync always counts as an error of the disk, whatever its errno:
data that it did not write may be lost (see `FileSystem.sync`).
"""

from __future__ import annotations

import errno

NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
PASSING = NO_DESCRIPTOR | {errno.ENOMEM}
OF_ONE_PATH = frozenset((errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR))


def lacks_descriptor(error: OSError) -> bool:
    """No descriptor is left, so no file can be opened."""
    return error.errno in NO_DESCRIPTOR


def is_passing(error: OSError) -> bool:
    """The disk and the path work, and the same call may succeed later."""
    return error.errno in PASSING


def is_of_one_path(error: OSError) -> bool:
    """This path cannot be used; others of the same disk can."""
    return error.errno in OF_ONE_PATH
