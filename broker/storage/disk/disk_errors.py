"""Which errors say something about a disk, and which about this process or one path (LOG-6, FLT-28..30). Pure.

    a disk             EIO, ENOSPC, EROFS, EDQUOT, ESTALE, ENODEV, EACCES, ENOENT, ... and whatever is not named here
    this process       EMFILE, ENFILE: no descriptor is left; ENOMEM: no memory. It passes.
    one path           ENAMETOOLONG, ELOOP, ENOTDIR, EISDIR: other files of the same disk can be used. It stays.

Only an error of the disk takes a log directory offline. A failed sync is always one of the disk, whatever it says: what it has not
written may be lost (see `FileSystem.sync`).
"""

from __future__ import annotations

import errno

NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
PASSING = NO_DESCRIPTOR | {errno.ENOMEM}
OF_ONE_PATH = frozenset((errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR))


def lacks_descriptor(error: OSError) -> bool:
    """No file could be opened: neither this one nor another."""
    return error.errno in NO_DESCRIPTOR


def is_passing(error: OSError) -> bool:
    """Nothing is wrong with the disk or the path; later the same call may succeed."""
    return error.errno in PASSING


def is_of_one_path(error: OSError) -> bool:
    """This path cannot be used; others of the same disk can."""
    return error.errno in OF_ONE_PATH
