"""The filesystem as the rest of the package sees it: nothing else touches a disk."""
