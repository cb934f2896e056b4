"""Where the bytes come from: the package index, pinned files by URL, a wheelhouse."""
