"""The filesystem as the rest of the package sees it; no other package accesses a disk."""
